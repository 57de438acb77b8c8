"""Whether a text fits a schema that it was not kept to, by JSON Schema's own rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.capabilities.box import BoxBroken
from quire.capabilities.grammar import Grammars
from quire.capabilities.grammar.misfits import misfit
from quire.core.errors import RequestError
from support.grammars import END, Words, backend

NEWEST: Any = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
CASES: list[tuple[Any, str, str]] = [
    ({"type": "array", "uniqueItems": True}, "[1, 2]", ""),
    ({"type": "array", "uniqueItems": True}, "[1, 1.0]", "[1, 1.0] at $ is not as uniqueItems"),
    ({"properties": {"a": {"not": {"pattern": "b"}}}}, '{"a": "b"}', '"b" at $.a is not as not'),
    ({"type": "integer"}, "1.0", ""),
    ({"type": "integer"}, "9007199254740993.5", "9007199254740993.5 at $ is not as type"),
    ({"type": "integer"}, "true", "true at $ is not as type"),
    ({"multipleOf": 0.01}, "0.07", ""),
    ({**NEWEST, "prefixItems": [{"const": 1}], "items": False}, "[1, 2]", "at $"),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 3,
      "exclusiveMaximum": True}, "3", "3 at $ is not as maximum"),
    (True, "5", ""),
    ({}, '{"a"', "it is no JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "text", "why"), CASES)
def test_why_a_text_does_not_fit(schema: Any, text: str, why: str) -> None:
    found = misfit(json.dumps(schema), text)
    assert why in found if why else found == ""


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:1/schema"},
        {"$ref": "#/$defs/nothing"},
        {"type": 5},
        {"pattern": "("},
        {"$schema": 5},
    ],
)
def test_nothing_is_fetched_and_what_is_no_schema_is_told(
    schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = list[object]()

    def fetch(what: object) -> None:
        fetched.append(what)
        raise OSError("nowhere")

    monkeypatch.setattr("urllib.request.urlopen", fetch)
    with pytest.raises(RequestError, match="not valid by itself"):
        misfit(json.dumps(schema), "5")
    assert not fetched


def test_who_looks_for_ever_ends_in_its_box(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = Grammars(Words(backend()), backend().get_vocab_size(), frozenset({END}))
    try:
        with (
            monkeypatch.context() as hasty,
            pytest.raises(BoxBroken, match=r"more than 0\.5 s|not come to an end"),
        ):
            hasty.setattr("quire.capabilities.grammar.grammars._LONGEST_CHECKING", 0.5)
            grammars.misfit({"pattern": "^(a+)+$"}, json.dumps("a" * 60 + "b"))
        assert grammars.misfit({"not": {"const": 5}}, "5") == "5 at $ is not as not says"
        assert grammars.misfit({"not": {"const": 5}}, "6") == ""
    finally:
        grammars.close()
