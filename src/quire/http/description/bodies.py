"""The schemas of bodies as doors take them: null where a field may be absent, and what passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import ModelSchema

from quire.http.fields.others import as_patterns, passing_schemas
from quire.http.fields.strict import Strict

_ABOUT = ("title", "description", "default", "examples")  # of a field, not of its values


class AsTaken(GenerateJsonSchema):
    """pydantic's schemas, and null where ``Strict`` takes one."""

    def model_schema(self, schema: ModelSchema) -> dict[str, Any]:
        told = super().model_schema(schema)
        if issubclass(schema["cls"], Strict):
            needed, fields = told.get("required", ()), told.get("properties", {})
            for name in fields.keys() - set(needed):
                fields[name] = _or_null(fields[name])
        return told


def with_what_passes(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A body's, and what changes nothing in any body."""
    fields = schema["properties"]
    passing = {name: one for name, one in passing_schemas().items() if name not in fields}
    patterns = {**as_patterns(passing), **schema.get("patternProperties", {})}
    return {**schema, "patternProperties": patterns}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field that may be null; what is told of the field stays where it is."""
    nothing = {"type": "null"}
    if nothing in schema.get("anyOf", ()):
        return schema
    about = {name: schema[name] for name in _ABOUT if name in schema}
    kind = {name: value for name, value in schema.items() if name not in _ABOUT}
    kinds = kind["anyOf"] if kind.keys() == {"anyOf"} else [kind]
    return {"anyOf": [*kinds, nothing], **about}
