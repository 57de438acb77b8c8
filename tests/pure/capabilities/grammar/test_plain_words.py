"""Schemas in words that llguidance does not have: what they allow, and what JSON Schema says."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from quire.capabilities.grammar.plain_words import widened
from quire.core.errors import RequestError
from support.grammars import allows, compiled

NAMED: dict[str, Any] = {"a": {"type": "integer"}, "b": {"type": "integer"}}
THINGS = {"type": "object", "properties": NAMED, "additionalProperties": False}
SHAPES: Any = [
    {"properties": {"kind": {"const": kind}, size: {"type": "integer"}}, "required": ["kind", size]}
    for kind, size in (("circle", "radius"), ("square", "side"))
]
TEXT = {"type": "string", "maxLength": 4}
CASES: list[tuple[Any, list[Any], list[Any]]] = [  # a schema, what it allows, and what not
    ({"type": "object", "oneOf": SHAPES}, [{"kind": "circle", "radius": 1}], [{"kind": "circle"}]),
    ({"type": "object", "oneOf": SHAPES}, [{"kind": "square", "side": 1}], [{"side": 1}]),
    ({"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}, {"const": "x"}]}, [1, 3, "x"], [2, 4]),
    ({"oneOf": [{"const": 1}, {"const": True}]}, [1, True], [2, False]),
    ({"oneOf": [{"type": "string"}, {"maxLength": 3}]}, ["abcd", 1, None], ["abc", ""]),
    (
        {**THINGS, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "b": 1}],
    ),
    (
        {
            "$defs": {"one": {"type": "number", "maximum": 2}, "two": {"minimum": 2}},
            "oneOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}],
        },
        [1, 2.5, "a"],
        [2],
    ),
    ({"type": "array", "not": {"maxItems": 1}}, [[1, 2]], [[], [1], 1]),
    ({**TEXT, "not": {"const": ""}}, ["a", " "], [""]),
    ({**TEXT, "not": {"enum": ["ab", "a/", "ac$"]}}, ["", "a", "abc", "ac", "a."], ["ab", "a/"]),
    ({**TEXT, "not": {"enum": ["ab", "é", "a]"]}}, ["b\n", "a", "e", 'a"'], ["ab", "é", "a]"]),
    ({**TEXT, "not": {"enum": ['a"', "b\\", "\x01"]}}, ['"', "a", "b", "\n"], ['a"', "b\\"]),
    ({"type": ["string", "null"], "not": {"type": "null"}}, ["a"], [None]),
    ({"type": "integer", "not": {"enum": [0, 7]}}, [-1, 1, 6, 8], [0, 7]),
    ({"type": "integer", "not": {"minimum": 3}}, [2, -4], [3, 4]),
    ({"enum": [True, False, None], "not": {"const": False}}, [True, None], [False]),
    ({**THINGS, "not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}]),
    ({**THINGS, "not": {"required": ["a", "b"]}}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 2}]),
    ({**THINGS, "not": {"properties": {"a": {"const": 1}}}}, [{"a": 2}], [{"a": 1}, {}, {"b": 1}]),
    ({**THINGS, "not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}}, [{}], [{"b": 1}]),
    ({"type": "string", "not": {"not": {"maxLength": 1}}}, ["", "a"], ["ab"]),
    ({"type": "boolean", "not": False}, [True], [1]),
    (
        {
            **THINGS,
            "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
            "then": {"required": ["b"]},
            "else": {"properties": {"b": False}},
        },
        [{"a": 1, "b": 1}, {}, {"a": 2}],
        [{"a": 1}, {"b": 1}, {"a": 2, "b": 1}],
    ),
    ({**THINGS, "dependentRequired": {"a": ["b"]}}, [{}, {"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
    (
        {**THINGS, "dependentSchemas": {"a": {"properties": {"b": {"const": 2}}}}},
        [{"a": 1}, {"a": 1, "b": 2}, {"b": 1}],
        [{"a": 1, "b": 1}],
    ),
    (  # what is said of other properties is about those beside it
        {"type": "object", "additionalProperties": False, "not": {"properties": {"a": False}}},
        [],
        [{"a": 1}, {}],
    ),
]


@pytest.mark.parametrize(("schema", "good", "bad"), CASES)
def test_other_words_say_exactly_the_same(schema: Any, good: list[Any], bad: list[Any]) -> None:
    standard = jsonschema.Draft202012Validator(schema)
    assert [standard.is_valid(one) for one in good + bad] == [True] * len(good) + [False] * len(bad)
    try:
        rules = compiled(json=schema)
    except RequestError as error:
        assert not good and "Unsatisfiable" in str(error)
        return
    texts = [json.dumps(one, ensure_ascii=False) for one in good + bad]
    assert [allows(rules, text) for text in texts] == [True] * len(good) + [False] * len(bad)


def test_older_dependencies_are_lists_or_schemas() -> None:
    for needed in (["b"], {"required": ["b"]}):
        rules = compiled(json={**THINGS, "dependencies": {"a": needed}})
        assert allows(rules, '{"b":1}') and allows(rules, '{"a":1,"b":1}')
        assert not allows(rules, '{"a":1}')


UNSAYABLE: list[tuple[Any, list[Any], list[Any], list[str]]] = [
    ({"type": "string", "not": {"pattern": "^a"}}, ["b"], [1], ["not"]),
    ({"oneOf": [{"type": "string"}, {"pattern": "a"}]}, ["b", 1], [], ["oneOf"]),
    ({"type": "array", "uniqueItems": True}, [[1, 2]], [1], ["uniqueItems"]),
    (  # a wider schema within one that is turned round would make that narrower
        {"type": "string", "not": {"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}},
        ["ab", "c"],
        [1],
        ["not", "oneOf"],
    ),
    (
        {**THINGS, "if": {"patternProperties": {"a": {"minimum": 1}}}, "then": {"required": ["b"]}},
        [{"a": 0}, {"a": 1, "b": 1}],
        [{"c": 1}],
        ["if", "then"],
    ),
]


@pytest.mark.parametrize(("schema", "good", "bad", "words"), UNSAYABLE)
def test_what_cannot_be_said_is_refused_or_left_out(
    schema: Any, good: list[Any], bad: list[Any], words: list[str]
) -> None:
    standard = jsonschema.Draft202012Validator(schema)
    with pytest.raises(RequestError, match="structured_outputs"):
        compiled(json=schema)
    wider, left_out = widened(schema)
    assert left_out == words
    rules = compiled(json=wider)
    for value in good:
        assert standard.is_valid(value) and allows(rules, json.dumps(value))
    assert not any(allows(rules, json.dumps(value)) for value in bad)


def test_what_is_kept_to_exactly_is_not_widened() -> None:
    for schema, _, _ in CASES:
        assert widened(schema)[1] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": 5},
        {"properties": 5, "required": 5, "pattern": 5, "minProperties": "a"},
        {"not": 5},
        {"oneOf": [5, {"required": 5}, {"required": [[]]}, {"type": 5}, {"type": [[]]}]},
        {"oneOf": [{"type": "object", "required": ["a"], "properties": [1]}, {"allOf": 5}]},
        {"oneOf": [{"$ref": 5}, {"$ref": "#/nowhere"}]},
        {"allOf": 5, "not": {"required": [5]}},
        {"allOf": 5, "not": {"type": "null"}},
        {"dependencies": {"a": 5}, "dependentRequired": [1]},
        {"not": {"enum": 5, "const": [1], "type": {"a": 1}}},
        {"oneOf": [{"enum": [{"a": [1]}]}, {"const": {"a": [1]}}]},
    ],
)
def test_what_is_no_schema_breaks_nothing(schema: Any) -> None:
    widened(schema)
    with pytest.raises(RequestError, match="structured_outputs"):
        compiled(json=schema)


def test_there_is_an_end_to_what_is_made() -> None:
    schema: Any = {"properties": {"a": {"const": 1}}, "required": ["a"]}
    for _ in range(12):
        schema = {"oneOf": [{"not": schema}, *({"required": [f"k{i}"]} for i in range(24))]}
    assert len(json.dumps(widened({"type": "object", **schema})[0])) < 2_000_000
