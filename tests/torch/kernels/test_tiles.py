"""What AMX computes, on machines that have it or not, equals its portable form bit by bit.

Where there is none, an emulator (``support/amx_emulator.c``) does what the processor refuses, so
that the very code runs that AMX would. What a processor would not do, the emulator does not either.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quire.kernels import _native
from quire.kernels.instructions import NOT_COMPILED
from support.instruction_sets import TESTED

SUPPORT = Path(__file__).parents[2] / "support"

with_tiles = pytest.mark.skipif("amx_portable" not in TESTED, reason="there is no AVX-512 here")


def compile_c(source: Path, target: Path, *flags: str) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    command = [compiler, "-O2", "-mfma", "-Wall", "-Werror", *flags, str(source), "-o", str(target)]
    subprocess.run([*command, "-lm"], check=True)
    return target


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which programs find AMX."""
    if "amx" in TESTED:
        return {**os.environ}
    library = tmp_path_factory.mktemp("emulator") / "amx_emulator.so"
    compile_c(SUPPORT / "amx_emulator.c", library, "-shared", "-fPIC")
    preloaded = [*os.environ.get("LD_PRELOAD", "").split(), str(library)]
    return {**os.environ, "LD_PRELOAD": " ".join(preloaded)}


@with_tiles
def test_products_and_attention_by_amx_are_those_of_the_portable_form(
    emulator: dict[str, str],
) -> None:
    path = os.pathsep.join([str(SUPPORT.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "support.tiles_compared"],
        env={**emulator, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "336 products are the same, 4 batches as well" in done.stdout


PRODUCT = "tdpbf16ps %tmm2, %tmm1, %tmm0"
TWICE = ".byte 0xc4, 0xe2, 0x73, 0x5e, 0xc1"  # tdpbssd %tmm1, %tmm1, %tmm0: assemblers refuse it
PROGRAMS = {
    # name: rows and bytes of tiles 0, 1 and 2, what is done with them, and the signal for it
    "right": ("2, 2, 3", "64, 12, 64", PRODUCT, None),
    "a tile of no shape": ("2, 2, 0", "64, 12, 0", PRODUCT, signal.SIGILL),
    "other rows": ("2, 3, 3", "64, 12, 64", PRODUCT, signal.SIGILL),
    "another depth": ("2, 2, 3", "64, 16, 64", PRODUCT, signal.SIGILL),
    "other columns": ("2, 2, 3", "60, 12, 64", "tdpbsud %tmm2, %tmm1, %tmm0", signal.SIGILL),
    "a tile twice": ("2, 2, 2", "8, 8, 8", TWICE, signal.SIGILL),
    "released": ("2, 2, 3", "64, 12, 64", "tilerelease; tilezero %tmm0", signal.SIGILL),
    "too many rows": ("17, 2, 3", "64, 12, 64", "nop", signal.SIGSEGV),
    "too wide": ("2, 2, 3", "64, 68, 64", "nop", signal.SIGSEGV),
    "rows of nothing": ("2, 2, 3", "64, 0, 64", "nop", signal.SIGSEGV),
}


@with_tiles
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_processor_refuses_is_refused(
    emulator: dict[str, str], name: str, tmp_path: Path
) -> None:
    rows, row_bytes, instructions, expected = PROGRAMS[name]
    flags = [f"-DROWS={rows}", f"-DBYTES={row_bytes}", f'-DINSTRUCTIONS="{instructions}"']
    program = compile_c(SUPPORT / "amx_program.c", tmp_path / "program", *flags)
    done = subprocess.run([program], env=emulator, capture_output=True, text=True)
    assert done.returncode == (0 if expected is None else -expected), done.stderr
    if "LD_PRELOAD" in emulator:
        assert ("amx emulator:" in done.stderr) == (expected is not None)


def test_what_cannot_run_here_says_why() -> None:
    usable, refused = _native.usable(), _native.refusals()
    assert not set(usable) & set(refused)
    if platform.machine() == "x86_64":
        assert {*usable, *refused} == {"amx", "avx512_bf16", "avx512", "avx2", "portable"}
    assert usable[-1] in ("portable", "neon")
    for name, reason in refused.items():
        assert not reason.startswith(NOT_COMPILED), (
            "install with QUIRE_ISAS=tests, as make test does"
        )
        assert "the processor" in reason or "the system" in reason
        with pytest.raises(ValueError, match=f"cannot run the kernels for {name}: {reason}"):
            _native.Products(name)


@with_tiles
def test_tiles_for_tests_are_never_chosen() -> None:
    assert "amx_portable" not in _native.usable()
    assert _native.Products("amx_portable").name == "amx_portable"
    assert _native.Products("").name == _native.usable()[0]
