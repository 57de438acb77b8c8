"""Which instructions the built kernels hold outside the builds that may use them.

``python scripts/foreign_instructions.py`` takes the module apart with objdump and has the assembler
say of every instruction whether the processors that may meet it know it: inside the namespace of a
build, those that the build is chosen for; everywhere else, set-up code and functions of the
standard library included, every processor of the architecture. Ends with status 1 if it finds any.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_AVX2 = ("avx2", "fma", "f16c", "popcnt")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
_AVX512_BF16 = (*_AVX512, "avx512_bf16", "avx512_vnni")
BUILDS: Mapping[str, Sequence[str]] = {
    "portable": (),
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512_bf16": _AVX512_BF16,
    "amx": (*_AVX512_BF16, "amx_tile", "amx_bf16", "amx_int8"),
    "amx_portable": _AVX512_BF16,
}
"""What each may use beyond the instructions that all x86-64 processors have, in as's words."""

_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_INSTRUCTION = re.compile(r"^ *[0-9a-f]+:\t(.+)$")
# The beginning of a mangled name: what kind of thing, whose local it is, then the namespaces.
_NAMESPACE = re.compile(r"^_[A-Z]+5quire(\d+)(\w+)")
_NUMBER = re.compile(r"0x[0-9a-f]+")
# Jumps and calls, which are in every processor, by addresses that as would have to know; a mark for
# them that older processors pass over; what is asked for only where cpuid says that it is there.
_PASSED_OVER = re.compile(
    r"^((bnd |notrack )?(j\w+|call|loop\w*)|endbr64|xgetbv|(data16 |cs )*nop\w*)\b"
)


class Foreign(NamedTuple):
    """An instruction that does not belong where it is."""

    function: str
    build: str  # in whose namespace it is; empty: in none
    instruction: str


def foreign_instructions(module: Path) -> list[Foreign]:
    """Each once for a function.

    Raises:
        ValueError: the module has no symbols, so nobody knows what is whose.
    """
    found: list[Foreign] = []
    functions: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for function, instruction in _disassembled(module):
        build = _build_of(function)
        functions[build][_NUMBER.sub("0x1", instruction)].add(function)
    if not any(functions[build] for build in BUILDS):
        raise ValueError(f"{module} has no symbols of the builds: was it stripped?")
    for build, users in functions.items():
        for instruction in _unknown(list(users), BUILDS.get(build, ())):
            found += [Foreign(function, build, instruction) for function in users[instruction]]
    return sorted(found)


def _disassembled(module: Path) -> Iterator[tuple[str, str]]:
    """(mangled name of its function, instruction) for each in the module."""
    command = ["objdump", "--disassemble", "--no-show-raw-insn", "--wide", str(module)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    function = ""
    for line in listing.splitlines():
        if begins := _FUNCTION.match(line):
            function = begins[1]
        elif (found := _INSTRUCTION.match(line)) is not None:
            text = re.sub(r"\s*(#.*|<[^>]*>.*)$", "", found[1])
            if text and not _PASSED_OVER.match(text):
                yield function, " ".join(text.split())


def _build_of(function: str) -> str:
    """The build in whose namespace it is; empty: in none."""
    if (found := _NAMESPACE.match(function)) is None:
        return ""
    name = found[2][: int(found[1])]
    return name if name in BUILDS else ""


def _unknown(instructions: Sequence[str], features: Iterable[str]) -> list[str]:
    """Those that a processor with nothing but these features lacks, as the assembler knows them."""
    known = [".arch generic64", *(f".arch .{feature}" for feature in features)]
    result = subprocess.run(
        ["as", "-o", "/dev/null", "-"],
        input="\n".join([*known, *instructions, ""]),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = {int(line) for line in re.findall(r":(\d+): Error:", result.stderr)}
    return [instructions[line - len(known) - 1] for line in sorted(lines)]


def main() -> int:
    kernels = Path(__file__).parent.parent / "src/quire/kernels"
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("modules", nargs="*", type=Path, help="(the one in this checkout)")
    modules = parser.parse_args().modules or sorted(kernels.glob("_native*.so"))
    found = [foreign for module in modules for foreign in foreign_instructions(module)]
    for function, build, instruction in found:
        place = f"in {build}" if build else "outside the builds"
        print(f"{instruction:50} {place}: {function}")
    print(f"{len(found)} foreign instructions in {', '.join(map(str, modules))}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
