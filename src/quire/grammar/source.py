"""What llguidance compiles, for each kind of structured outputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llguidance import LLMatcher, StructTag
from llguidance.gbnf_to_lark import any_to_lark

from quire.errors import RequestError
from quire.grammar.tags import TagGrammar
from quire.protocol import StructuredOutputs

_WHITESPACE = r"[ \t\n\r]{1,16}"  # where it may be: models have been seen to write nothing else
_LONGEST_GBNF = 2**14  # characters: it is read by Python
_MOST_TAGS = 1_024
_FIELD = "structured_outputs"
_FORMATS = {
    *("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"),
    "unknown",
}
_SCHEMAS_BY_NAME = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_VALUES = {"const", "enum", "default", "example", "examples"}  # which are no schemas

Json = dict[str, Any]


def grammar_source(asked: StructuredOutputs) -> str:
    """llguidance's own text of it; RequestError where there cannot be one."""
    if asked.json is not None or asked.json_object:
        schema = '{"type": "object"}' if asked.json is None else asked.json
        return _of_schema(schema, asked)
    if asked.regex is not None:
        return LLMatcher.grammar_from_regex(asked.regex)
    if asked.choice is not None:
        return "start: " + " | ".join(map(_literal, dict.fromkeys(asked.choice)))
    if asked.grammar is not None:
        return _of_grammar(asked.grammar)
    assert asked.structural_tag is not None
    return _of_tags(json.loads(str(asked.structural_tag)))


def _of_schema(schema: Any, asked: StructuredOutputs) -> str:
    edits = [_without_unknown_format]
    if asked.disable_additional_properties:
        edits.append(_closed)
    if '"format"' in schema or asked.disable_additional_properties:
        schema = json.dumps(_edited(json.loads(schema), edits))
    if asked.disable_any_whitespace:
        layout: dict[str, Any] = {"whitespace_flexible": False}
    else:
        layout = {"whitespace_pattern": asked.whitespace_pattern or _WHITESPACE}
    # It takes "true", which allows anything, for no object.
    schema = '{"anyOf": [true]}' if schema == "true" else schema
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=layout)  # type: ignore[arg-type]
    except ValueError as error:
        raise RequestError(f"{_FIELD}.json: {error}", _FIELD) from error


def _edited(schema: Any, edits: Sequence[Callable[[Json], Json]]) -> Any:
    """A schema with all schemas in it."""
    if isinstance(schema, list):
        return [_edited(item, edits) for item in schema]
    if not isinstance(schema, dict):
        return schema
    edited: Json = {}
    for key, value in schema.items():
        if key in _SCHEMAS_BY_NAME and isinstance(value, dict):
            edited[key] = {name: _edited(item, edits) for name, item in value.items()}
        else:
            edited[key] = value if key in _VALUES else _edited(value, edits)
    for edit in edits:
        edited = edit(edited)
    return edited


def _without_unknown_format(schema: Json) -> Json:
    """By JSON Schema, a format that is not understood says nothing."""
    if isinstance(schema.get("format"), str) and schema["format"] not in _FORMATS:
        return {key: value for key, value in schema.items() if key != "format"}
    return schema


def _closed(schema: Json) -> Json:
    """Objects that list their properties have no others, unless they say so."""
    if "properties" in schema and "additionalProperties" not in schema:
        return {**schema, "additionalProperties": False}
    return schema


def _of_grammar(text: str) -> str:
    if "::=" in text and len(text) > _LONGEST_GBNF:
        raise RequestError(
            f"{_FIELD}.grammar may have at most {_LONGEST_GBNF:,} characters as GBNF", _FIELD
        )
    try:
        return str(any_to_lark(text))
    except Exception as error:  # it raises plain Exception
        raise RequestError(f"{_FIELD}.grammar cannot be read: {str(error)[:200]}", _FIELD) from None


def _of_tags(given: Mapping[str, Any]) -> str:
    """vLLM's {"type": "structural_tag", "structures": [{begin, schema, end}], "triggers": [...]}

    Or, newer, {"type": "structural_tag", "format": {...}}.
    """
    if given.get("format") is not None:
        if others := sorted(given.keys() - {"type", "format"}):
            name = f"{_FIELD}.structural_tag.{others[0]}"
            raise RequestError(f"{name} cannot be given beside format", _FIELD)
        return TagGrammar(_tag_schema, _of_grammar).source(given["format"])
    structures, triggers = given.get("structures"), given.get("triggers")
    name = f"{_FIELD}.structural_tag"
    if not isinstance(structures, list) or not isinstance(triggers, list) or not structures:
        raise RequestError(
            f'{name} must hold "format", or the lists "structures" and "triggers"', _FIELD
        )
    if len(structures) > _MOST_TAGS:
        raise RequestError(f"{name} may hold at most {_MOST_TAGS} structures", _FIELD)
    return StructTag.to_grammar(
        [_tag(name, one, triggers) for one in structures], assume_special=False
    )


def _tag(name: str, structure: Any, triggers: list[Any]) -> StructTag:
    begin, end, schema = (
        structure.get(key) if isinstance(structure, dict) else None
        for key in ("begin", "end", "schema")
    )
    if not (isinstance(begin, str) and isinstance(end, str) and isinstance(schema, dict)):
        raise RequestError(
            f'{name}.structures must hold objects of "begin" and "end", texts, and "schema"', _FIELD
        )
    heads = [one for one in triggers if isinstance(one, str) and one and begin.startswith(one)]
    if not heads:
        raise RequestError(f"{name}: a structure's begin must start with a trigger", _FIELD)
    layout = {"x-guidance": {"whitespace_pattern": _WHITESPACE}}
    return StructTag(trigger=heads[0], begin=begin, grammar={**layout, **schema}, end=end)


def _tag_schema(schema: Any, most: int | None) -> Json:
    """most: white space at a place; None: as everywhere."""
    layout: Json = {"whitespace_pattern": _WHITESPACE}
    if most is not None:
        layout = {"whitespace_pattern": rf"[ \t\n\r]{{1,{most}}}"}
    if most == 0:
        layout = {"whitespace_flexible": False}
    if schema is True:
        schema = {"anyOf": [True]}
    elif schema is False:
        schema = {"anyOf": [False]}
    return {"x-guidance": layout, **_edited(schema, [_without_unknown_format])}


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
