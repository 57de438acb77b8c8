#!/usr/bin/env bash
# Runs tests with the lowest versions of what Quire needs directly, or with the highest.
#   scripts/bounds.sh UV PYTHON lowest-direct|highest TESTS...
# They are in an environment of their own; behind it lies PYTHON's, which has PyTorch, whose builds
# are gigabytes, the kernels in C++ and what tests need. The lowest PyTorch is tried with a wheel:
#   make test-wheel QUIRE_WITH="torch==2.10.0 transformers==5.20.0"
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$1 python=$2 which=$3
shift 3
export VIRTUAL_ENV=$PWD/build/bounds-$which
"$uv" venv --quiet --clear --python "$python" "$VIRTUAL_ENV"
given=$(mktemp -d)
trap 'rm -rf "$given"' EXIT
echo "torch; sys_platform == 'none'" >"$given/none"
printf '%s\n' . ./cluster ./lab | "$uv" pip compile - --quiet --no-header --override "$given/none" \
  --no-annotate $(printf -- " --no-emit-package %s" quire-llm quire-llm-cluster quire-llm-lab) \
  --resolution "$which" --output-file "$given/packages"
cat "$given/packages"
"$uv" pip install --quiet --no-deps --requirement "$given/packages"
others=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "import site; site.addsitedir('$others')" >"$(echo "$VIRTUAL_ENV"/lib/python*/site-packages)/others.pth"
"$VIRTUAL_ENV/bin/python" -m pytest --numprocesses 2 "$@"
