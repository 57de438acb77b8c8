"""AVX10, where it is found by name. What it does better is left out, and nothing is compiled."""

from __future__ import annotations

import re
from pathlib import Path

from recipes.recipe import Recipe

_SOURCE, _BUILD = "csrc/processor.cpp", "CMakeLists.txt"

RECIPE = Recipe(
    "An instruction set",
    [
        (
            _SOURCE,
            "std::string lacks_avx512_bf16() {\n",
            """std::string lacks_avx10() {
  return first_missing({QUIRE_FEATURE("avx10.1-512")});
}

std::string lacks_avx512_bf16() {
""",
        ),
        (
            _SOURCE,
            '          {"avx512_bf16", lacks_avx512_bf16()},\n',
            '          {"avx10", lacks_avx10()},\n'
            '          {"avx512_bf16", lacks_avx512_bf16()},\n',
        ),
        (
            _BUILD,
            "  add_instruction_set(avx2 ",
            "  add_instruction_set(avx10 -mavx10.1-512)\n  add_instruction_set(avx2 ",
        ),
    ],
)


def check() -> None:
    """What can be chosen is what is built."""
    source, build = (Path(file).read_text() for file in (_SOURCE, _BUILD))
    known = set(re.findall(r'\{"(\w+)", (?:lacks_|")', source))
    assert "avx10" in known
    assert known == set(re.findall(r"add_instruction_set\((\w+)", build)) - {"name"}
