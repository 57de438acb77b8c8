"""Tools' schemas that hold what can be kept to, and what is easily got wrong."""

from __future__ import annotations

from typing import Any

SCHEMAS: dict[str, dict[str, Any]] = {
    "nothing": {"type": "object", "properties": {}, "additionalProperties": False},
    "texts": {
        "type": "object",
        "properties": {
            "unit": {"enum": ["celsius", "fahr::=enheit"]},
            "from": {"type": "string", "pattern": "^[a-z]{2}/[0-9]$"},
            "note": {"type": "string", "minLength": 2, "maxLength": 6},
            "perhaps": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
        },
        "required": ["unit", "note"],
    },
    "values": {
        "type": "object",
        "properties": {
            "days": {"type": "integer", "minimum": 1, "maximum": 99},
            "exact": {"type": "boolean"},
            "point": {"$ref": "#/$defs/point"},
            "tags": {"type": "array", "items": {"enum": [1, None, "a"]}, "maxItems": 3},
        },
        "$defs": {
            "point": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"const": 'a"b'}},
                "required": ["x", "y"],
                "additionalProperties": False,
            }
        },
        "required": ["point"],
    },
}
