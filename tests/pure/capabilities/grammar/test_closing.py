"""Objects that have no properties but those that are named, unless their schema opens them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import pytest

from quire.capabilities.grammar import GrammarCompiler
from quire.capabilities.grammar.closing import closed
from support.grammars import END, Words, allows, backend, compiled

WHOLE = {"type": "integer"}
BASE = {"type": "object", "properties": {"a": WHOLE}}
CHOICE = [
    {"type": "object", "properties": {"k": {"const": kind}, name: WHOLE}, "required": ["k"]}
    for kind, name in ((1, "a"), (2, "b"))
]


@cache
def strict() -> GrammarCompiler:
    return GrammarCompiler(Words(backend()), backend().get_vocab_size(), frozenset({END}))


CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {  # a schema, what stays, what was invented
    "an object": (BASE, [{}, {"a": 1}], [{"a": 1, "b": 2}, {"b": 1}]),
    "one without properties": ({"type": "object", "properties": {}}, [{}], [{"a": 1}]),
    "one that lists none": ({"type": "object"}, [{}, {"a": {"b": 1}}], []),
    "one that is opened": ({**BASE, "additionalProperties": True}, [{"a": 1, "b": 2}], []),
    "one that is opened to some": ({**BASE, "additionalProperties": WHOLE}, [{"b": 2}], []),
    "a name that is only required": (
        {**BASE, "required": ["z"]},
        [{"z": "x"}, {"a": 1, "z": {}}],
        [{"z": 1, "y": 2}],
    ),
    "an object in another": (
        {"type": "object", "properties": {"o": BASE}},
        [{"o": {"a": 1}}],
        [{"o": {"b": 1}}],
    ),
    "objects in a list": ({"type": "array", "items": BASE}, [[{"a": 1}]], [[{"b": 1}]]),
    "objects by any name": (
        {"type": "object", "additionalProperties": BASE},
        [{"x": {"a": 1}}],
        [{"x": {"b": 1}}],
    ),
    "expressions for names": (
        {"type": "object", "patternProperties": {"^x": WHOLE}},
        [{"xa": 1}],
        [{"y": 1}],
    ),
    "several together": (
        {"allOf": [BASE, {"properties": {"b": WHOLE}, "required": ["b"]}]},
        [{"a": 1, "b": 2}, {"b": 1}],
        [{"b": 1, "c": 2}],
    ),
    "one part of several that is opened": (
        {"allOf": [BASE, {"properties": {"b": WHOLE}, "additionalProperties": True}]},
        [{"a": 1, "c": 2}],
        [],
    ),
    "one that is also a part": (
        {
            "$defs": {"base": BASE},
            "type": "object",
            "properties": {
                "x": {"$ref": "#/$defs/base"},
                "y": {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": WHOLE}}]},
            },
        },
        [{"x": {"a": 1}, "y": {"a": 1, "b": 2}}],
        [{"y": {"c": 1}}, {"z": 1}],
    ),
    "choices": (
        {"anyOf": [BASE, {"type": "object", "properties": {"b": WHOLE}}]},
        [{"a": 1}, {"b": 1}],
        [{"a": 1, "b": 1}, {"c": 1}],
    ),
    "choices of which one is": (
        {"oneOf": CHOICE},
        [{"k": 1, "a": 1}, {"k": 2}],
        [{"k": 2, "a": 1}, {"k": 1, "c": 1}],
    ),
    "choices beside properties": (
        {**BASE, "anyOf": [{"required": ["a"]}, {"required": ["o"]}]},
        [{"a": 1}, {"a": 1, "o": 1}, {"o": 1}],
        [{"a": 1, "z": 1}],
    ),
    "choices beside objects": (
        {
            "type": "object",
            "properties": {"o": BASE, "p": WHOLE},
            "anyOf": [{"required": ["o"]}, {"required": ["p"]}],
        },
        [{"o": {"a": 1}}],
        [{"o": {"b": 1}}],
    ),
    "a condition": (
        {
            "type": "object",
            "properties": {"a": WHOLE, "b": WHOLE},
            "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
            "then": {"required": ["b"]},
        },
        [{"a": 1, "b": 1}, {"a": 2}],
        [{"c": 1}],
    ),
    "what must not be": ({"type": "object", "not": {"required": ["a"]}}, [{"b": 1}], []),
    "itself": (
        {
            "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}},
            "$ref": "#/$defs/n",
        },
        [{"n": {"n": {}}}],
        [{"n": {"m": 1}}],
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_models_cannot_invent_properties(what: str) -> None:
    schema, good, bad = CASES[what]
    standard = jsonschema.Draft202012Validator(schema)
    assert all(map(standard.is_valid, good + bad))
    rules, opened = compiled(strict(), json=schema), compiled(json=schema)
    texts = [json.dumps(one) for one in good + bad]
    assert all(allows(opened, text) for text in texts)
    assert [allows(rules, text) for text in texts] == [True] * len(good) + [False] * len(bad)


def test_a_request_has_the_last_word() -> None:
    text = '{"a":1,"b":2}'
    said = {"json": BASE, "disable_additional_properties": False}
    assert allows(compiled(strict(), **said), text)
    assert not allows(compiled(**{**said, "disable_additional_properties": True}), text)


def test_it_holds_in_grammars_and_tags_too() -> None:
    grammar = compiled(strict(), grammar=f"start: %json {json.dumps(BASE)}")
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": BASE}}
    for rules in (grammar, compiled(strict(), structural_tag=tag)):
        assert allows(rules, '{"a":1}') and not allows(rules, '{"b":1}')


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": 5},
        {"properties": {"a": 5}, "required": 5},
        {"properties": {}, "minProperties": 1},
        {"properties": {"a": {}}, "allOf": [5]},
        {"properties": {"a": {}}, "$ref": "#/nowhere"},
        {"properties": {"a": {}}, "allOf": [{"patternProperties": {"b": {}}}]},
        True,
        [],
    ],
)
def test_what_cannot_be_told_stays_as_it_is(schema: Any) -> None:
    assert closed(schema) == schema
