#!/usr/bin/env bash
# The kernels' tests on emulated 64-bit ARM processors: one without extensions, one with dot products,
# one with all that QEMU knows.
#
#     scripts/arm.sh [PYTEST ARGUMENTS]
#
# By default the tests of the kernels, which takes half an hour on two cores. Needs Debian, its packages
# g++-aarch64-linux-gnu and qemu-user, and cmake and pip. Debian's Python for that processor and
# PyTorch's wheel are unpacked under build/arm; nothing is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$PWD/build/arm
python=$build/python

unpack_python() {
    local apt=$build/apt
    mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$build/sysroot"
    touch "$apt/state/status"
    cat > "$apt/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
Dir::State "$apt/state";
Dir::State::status "$apt/state/status";
Dir::Cache "$apt/cache";
Debug::NoLocking "true";
END
    APT_CONFIG=$apt/apt.conf apt-get update -qq
    APT_CONFIG=$apt/apt.conf apt-get install -y -qq --download-only \
        python3 libpython3-dev libgomp1 libstdc++6
    for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$build/sysroot"; done
    cat > "$python" <<END
#!/bin/sh
PYTHONPATH="$build/site\${PYTHONPATH:+:\$PYTHONPATH}" exec \
    qemu-aarch64 -L "$build/sysroot" "$build/sysroot/usr/bin/python3" "\$@"
END
    chmod +x "$python"
}

# One by one: pip would ask for what they need on the machine that it runs on.
install_packages() {
    local version
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    python3 -m pip install --quiet --target "$build/site" --no-deps --only-binary :all: \
        --python-version "$version" --platform manylinux_2_28_aarch64 \
        --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 \
        --platform manylinux2014_aarch64 \
        torch==2.9.1 filelock fsspec jinja2 markupsafe mpmath networkx sympy typing-extensions \
        numpy nanobind psutil pytest pytest-timeout iniconfig packaging pluggy pygments \
        hypothesis sortedcontainers safetensors
}

compile() {
    # The emulated Python tells its headers and what modules are called.
    cmake -S . -B "$build/kernels" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
        -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DPython_EXECUTABLE="$python" \
        -DPython_INCLUDE_DIR="$(echo "$build"/sysroot/usr/include/python3.*)" \
        -DCMAKE_CXX_FLAGS="-idirafter $build/sysroot/usr/include" > "$build/cmake.log"
    cmake --build "$build/kernels"
    # A package beside the sources, which may hold this machine's own module.
    rm -rf "$build/package"
    mkdir -p "$build/package"
    cp -r src/quire "$build/package"
    rm -f "$build"/package/quire/kernels/_native*
    cp "$build"/kernels/kernels/_native*.so "$build/package/quire/kernels"
}

run_tests() {
    local processor=$1 instructions=$2
    shift 2
    echo "== $instructions, on a $processor"
    QEMU_CPU=$processor PYTHONPATH=$build/package \
        "$python" -m pytest -q -p no:cacheprovider --timeout 0 -k "$instructions" "$@"
}

[ -x "$python" ] || unpack_python
[ -d "$build/site/torch" ] || install_packages
compile
kernels=tests/torch/kernels
[ $# -gt 0 ] || set -- $kernels/test_{products,attention,bits_of_attention,elementwise,shared_blocks,decoder,recurrence}.py
# An instruction that a processor lacks ends the run, wherever it is.
run_tests cortex-a53 neon "$@"
run_tests neoverse-n1 neon_dot "$@"
run_tests max neon_i8mm "$@"
