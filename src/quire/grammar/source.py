"""What llguidance compiles, for each kind of structured outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher, StructTag
from llguidance.gbnf_to_lark import any_to_lark

from quire.errors import RequestError
from quire.protocol import StructuredOutputs

_WHITESPACE = r"[ \t\n\r]{1,16}"  # where it may be: models have been seen to write nothing else
_LONGEST_GBNF = 2**15  # characters: it is read by Python
_MOST_TAGS = 1_024
_FIELD = "structured_outputs"


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
    if asked.disable_additional_properties:
        schema = json.dumps(_closed(json.loads(schema)))
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


def _closed(schema: Any) -> Any:
    """Objects that list their properties have no others, unless they say so."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if "properties" in schema and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed


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
    """vLLM's {"type": "structural_tag", "structures": [{begin, schema, end}], "triggers": [...]}"""
    structures, triggers = given.get("structures"), given.get("triggers")
    name = f"{_FIELD}.structural_tag"
    if not isinstance(structures, list) or not isinstance(triggers, list) or not structures:
        raise RequestError(f'{name} must hold the lists "structures" and "triggers"', _FIELD)
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


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
