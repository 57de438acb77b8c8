"""Patterns of tools' texts: where they are anchored, and what JavaScript means by them."""

from __future__ import annotations

import re

import pytest

from quire.core.errors import RequestError
from quire.text.dialect import DIALECTS
from quire.text.dialect.grammar import Wanted
from quire.text.dialect.schemas import whole
from support.grammars import allows, compiled

TEXTS = [
    "",
    "a",
    "b",
    "$",
    "a$",
    "a$b",
    "$x",
    "x$",
    "^a",
    "xa",
    "ax",
    "xb",
    "ab",
    "a/b",
    "xa/bx",
    "a\\",
    "xa\\",
    "a\\x",
    "\\/",
    "/",
    "12",
    "x12",
    "a.b",
    "|",
    "a|b",
    "(a)",
    "^",
    "a\nb",
]


@pytest.mark.parametrize(
    "pattern",
    [
        r"\$",
        r"^a\$$",
        r"^\$",
        r"a\\$",
        r"^a\\\$",
        "^a|b$",
        "a|^b$",
        "[$^]",
        "a/b",
        r"a\/b",
        r"\\/",
        "[/]",
        r"^\d+$",
        r"^[\w.]+$",
        "",
        "^$",
        "^",
        "$",
        "^(a|b)$",
        r"^\^a",
        r"a\|b",
        r"[|]",
        r"^\(a\)$",
        "a\nb",
        r"^[^/]$",
        "^(?:a|x)b?$",
    ],
)
def test_a_pattern_matches_what_it_does_elsewhere(pattern: str) -> None:
    rules = compiled(grammar=f"start: T\nT: /{whole(pattern)}/")
    found = [text for text in TEXTS if allows(rules, text)]
    assert found == [text for text in TEXTS if re.search(pattern, text, re.ASCII)]


def test_anchors_amid_a_pattern_are_refused_by_name() -> None:
    for pattern in ("(^a)", "a(b$)", "a^b", "^^a"):
        with pytest.raises(RequestError, match=r"ends only") as caught:
            whole(pattern)
        assert caught.value.field == "tools"


@pytest.mark.parametrize("name", ["qwen3_xml", "glm45"])
@pytest.mark.parametrize("pattern", [r"^US\$", r"\$", r"x/\$"])
def test_calls_in_xml_take_patterns_that_end_in_a_dollar(name: str, pattern: str) -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    writing = DIALECTS[name].writing
    assert writing is not None
    compiled(grammar=writing.grammar(Wanted({"f": schema}, quoted, several=False)))


def quoted(text: str) -> str:
    return f'"{text}"'.replace("\n", "\\n")
