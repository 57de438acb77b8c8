#!/usr/bin/env bash
# Runs tests with the lowest versions of what Quire needs directly, or with the highest.
#   scripts/bounds.sh UV lowest-direct|highest TESTS...
# Without PyTorch, whose builds are gigabytes, and without the kernels in C++.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$1 which=$2
shift 2
export VIRTUAL_ENV=$PWD/build/bounds-$which PYTHONPATH=src:cluster/src:lab/src
"$uv" venv --quiet --clear --python "${PYTHON:-python3}" "$VIRTUAL_ENV"
given=$(mktemp -d)
trap 'rm -rf "$given"' EXIT
echo "torch; sys_platform == 'none'" >"$given/none"
printf '%s\n' . ./cluster ./lab | "$uv" pip compile - --quiet --no-header --override "$given/none" \
  --no-annotate --no-emit-package quire --no-emit-package quire-cluster --no-emit-package quire-lab \
  --resolution "$which" --output-file "$given/packages"
cat "$given/packages"
"$uv" pip install --quiet --requirement "$given/packages" \
  pytest pytest-timeout pytest-xdist hypothesis httpx gguf jsonschema
"$VIRTUAL_ENV/bin/python" -m pytest --quiet --numprocesses 2 "$@"
