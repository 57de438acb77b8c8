"""Schemas of tools that no grammar, or only some, can be made of: all are those of objects."""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string"}


def _of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


def _deep(levels: int) -> dict[str, Any]:
    return _of(_deep(levels - 1)) if levels else TEXT


HOSTILE: dict[str, dict[str, Any]] = {
    "an impossible bound": _of({"type": "integer", "minimum": 5, "maximum": 3}),
    "no value": _of(False),
    "no type": _of({"type": "file"}),
    "a type that is none": _of({"type": 5}),
    "types that are none": _of({"type": [["string"]]}),
    "a reference to elsewhere": _of({"$ref": "https://example.com/schema.json"}),
    "a reference to nothing": _of({"$ref": "#/$defs/nothing"}),
    "a circle": {**_of({"$ref": "#/$defs/a"}), "$defs": {"a": {"$ref": "#/$defs/a"}}},
    "an endless object": {
        **_of({"$ref": "#/$defs/a"}),
        "$defs": {"a": {**_of({"$ref": "#/$defs/a"})}},
    },
    "look-around": _of({**TEXT, "pattern": "^(?!a).*$"}),
    "an anchor in the middle": _of({**TEXT, "pattern": "a^b"}),
    "an expression that is none": _of({**TEXT, "pattern": "("}),
    "a number as an expression": _of({**TEXT, "pattern": 5}),
    "a word as a bound": _of({"type": "integer", "minimum": "1"}),
    "too fine a step": _of({"type": "number", "multipleOf": 0.1000000000000000055511151231257827}),
    "an empty list of values": _of({"enum": []}),
    "properties that are a list": _of({"type": "object", "properties": []}),
    "a long list of what must differ": _of({"type": "array", "uniqueItems": True, "minItems": 3}),
    "what it must not be": _of({"not": {"anyOf": [{"pattern": "a"}, {"format": "date"}]}}),
    "an overlap": {"oneOf": [{"properties": {"a": TEXT}}, {"properties": {"a": {"minLength": 1}}}]},
    "counted properties": {**_of(TEXT), "properties": {"a": TEXT, "b": TEXT}, "minProperties": 2},
    "named properties": {**_of(TEXT), "propertyNames": {"pattern": "^[a-z]$"}},
    "deep": _deep(80),
    "many values": _of({"enum": [f"{i}-{i * 7919}" for i in range(3_000)]}),
    "a long count": _of({**TEXT, "pattern": "^(a{1,500}b{1,500}){1,500}$"}),
    "required, but not described": {"type": "object", "required": ["a", "b c", 'd"']},
    "required, but forbidden": {**_of(TEXT), "required": ["a", "b"], "additionalProperties": False},
    "odd names": {"type": "object", "properties": {'a"b': TEXT, "": TEXT, "c>d": {"type": "null"}}},
}
