#!/usr/bin/env bash
# Builds what users install: of each package an sdist, and from that a wheel. The kernels are those for
# every processor of this kind.
#   scripts/wheels.sh PYTHON FOLDER
# PYTHON has what locks/build.txt says. What was in FOLDER is removed. On Linux the wheel with the
# kernels is named after the oldest system that it runs on; no copy of OpenMP is put into it, since the
# kernels share PyTorch's.
set -euo pipefail
python=$(realpath --no-symlinks "$(command -v "$1")") folder=$(realpath "$(dirname "$2")")/$(basename "$2")
PATH=$(realpath "$(dirname "$python")"):$PATH
cd "$(dirname "$0")/.."
export QUIRE_ISAS=all
rm -rf "$folder"
for package in . cluster lab; do
  "$python" -m build --no-isolation --outdir "$folder" "$package"
done
raw=$(echo "$folder"/quire_llm-*-linux_*.whl)
if [ -e "$raw" ]; then
  "$python" -m auditwheel repair --exclude libgomp.so.1 --wheel-dir "$folder" "$raw"
  rm "$raw"
fi
