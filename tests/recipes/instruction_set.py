"""AVX10, where it is found by name. What it does better is left out, and nothing is compiled."""

from __future__ import annotations

import re
from pathlib import Path

from recipes.recipe import Recipe

_HEADER, _SOURCE, _BUILD = "csrc/builds.hpp", "csrc/builds.cpp", "CMakeLists.txt"

RECIPE = Recipe(
    "An instruction set",
    [
        (
            _HEADER,
            "namespace avx2 {\n",
            "namespace avx10 {\nextern const Build build;\n}\nnamespace avx2 {\n",
        ),
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
            "          {&avx512_bf16::build, lacks_avx512_bf16()},\n",
            "          {&avx10::build, lacks_avx10()},\n"
            "          {&avx512_bf16::build, lacks_avx512_bf16()},\n",
        ),
        (
            _BUILD,
            "  add_instruction_set(avx2 ",
            "  add_instruction_set(avx10 -mavx10.1-512)\n  add_instruction_set(avx2 ",
        ),
    ],
)


def check() -> None:
    """What is declared is what is built, and can be chosen."""
    header, source, build = (Path(file).read_text() for file in (_HEADER, _SOURCE, _BUILD))
    declared = set(re.findall(r"^namespace (\w+) \{.*\nextern const Build", header, re.MULTILINE))
    assert "avx10" in declared
    assert declared == set(re.findall(r"add_instruction_set\((\w+)", build)) - {"name"}
    assert declared == set(re.findall(r"\{&(\w+)::build", source))
