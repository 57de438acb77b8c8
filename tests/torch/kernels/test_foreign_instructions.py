"""No instruction stands where a processor may meet it that does not know it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from scripts import foreign_instructions as script

from quire.kernels import _native, cpu

pytestmark = [
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="about x86-64"),
    pytest.mark.skipif(
        not (shutil.which("objdump") and shutil.which("as")), reason="needs binutils"
    ),
]


def test_each_build_keeps_to_its_own_and_all_else_to_every_processors() -> None:
    assert set(cpu.all_builds()) <= set(script.BUILDS)
    assert script.foreign_instructions(Path(str(_native.__file__))) == []


def assembled(tmp_path: Path, **functions: str) -> Path:
    """An object file with an instruction in each function."""
    lines = [f"{name}:\n{instruction}\nret\n" for name, instruction in functions.items()]
    target = tmp_path / "planted.o"
    subprocess.run(["as", "-o", str(target), "-"], input="".join(lines), text=True, check=True)
    return target


PLANTED = {
    "_ZN5quire4avx21fEv": ("avx2", "vaddps %zmm0,%zmm1,%zmm2"),
    "_ZN5quire4avx21gEv": ("avx2", "vaddps %ymm16,%ymm1,%ymm2"),
    "_ZZN5quire6avx5121hEvENKUlvE_clEv": ("avx512", "vdpbf16ps %zmm0,%zmm1,%zmm2"),
    "_ZN5quire11avx512_bf161iEv": ("avx512_bf16", "tilezero %tmm0"),
    "_ZN5quire12amx_portable1jEv": ("amx_portable", "tdpbssd %tmm0,%tmm1,%tmm2"),
    "_ZN5quire8portable1kEv": ("portable", "pshufb %xmm0,%xmm1"),
    "_ZNSt6vectorIfSaIfEE1lEv": ("", "vmovups %xmm0,%xmm1"),  # shared by the linker's choice
    "_GLOBAL__sub_I_products.cpp": ("", "popcnt %rax,%rax"),  # when the module is loaded
}
ALLOWED = {
    "_ZN5quire4avx21mEv": "vfmadd231ps %ymm0,%ymm1,%ymm2",
    "_ZN5quire6avx5121nEv": "vpternlogd $0xff,%zmm0,%zmm1,%zmm2",
    "_ZN5quire3amx1oEv": "tdpbf16ps %tmm0,%tmm1,%tmm2",
    "_ZN5quire8portable1pEv": "addps %xmm0,%xmm1",
    "main": "nopw %cs:0x0(%rax,%rax,1)",
}


def test_planted_ones_are_found(tmp_path: Path) -> None:
    planted = {name: instruction for name, (_, instruction) in PLANTED.items()}
    found = script.foreign_instructions(assembled(tmp_path, **planted, **ALLOWED))
    assert {(one.function, one.build) for one in found} == {
        (name, build) for name, (build, _) in PLANTED.items()
    }


def test_a_module_without_names_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no symbols"):
        script.foreign_instructions(assembled(tmp_path, main="addps %xmm0,%xmm1"))
