#!/usr/bin/env bash
# The tests of all C++ under AddressSanitizer and UndefinedBehaviorSanitizer:
#
#     scripts/sanitize.sh PYTHON
#
# PYTHON has the packages that the tests need. Quire itself is built anew, with g++.
set -euo pipefail
python=$(realpath --no-symlinks "$1")
cd "$(dirname "$0")/.."
environment=build/sanitize
"$python" -m venv --clear "$environment"
packages='import sysconfig; print(sysconfig.get_path("purelib"))'
"$python" -c "$packages" > "$("$environment/bin/python" -c "$packages")/packages.pth"
"$environment/bin/pip" install --quiet --no-deps --ignore-installed \
    --config-settings cmake.define.QUIRE_ISAS=tests \
    --config-settings cmake.define.QUIRE_SANITIZE=address,undefined .
# Python itself is not instrumented, so the runtimes must be loaded first; nor does it free all.
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" \
    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
    "$environment/bin/python" -m pytest -q -p no:cacheprovider --numprocesses auto \
    --ignore-glob "*gpu*" tests/torch/kernels tests/pure/capabilities/speculation
