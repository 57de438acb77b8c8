"""What llguidance compiles, for each kind of structured outputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits, StructTag
from llguidance.gbnf_to_lark import any_to_lark

from quire.capabilities.grammar.closing import closed
from quire.capabilities.grammar.foreign import Foreign
from quire.capabilities.grammar.lark import either, literal, prepared
from quire.capabilities.grammar.plain_words import in_plain_words, with_read_patterns
from quire.capabilities.grammar.schema import schema_grammar
from quire.capabilities.grammar.subschemas import check_depth, edited
from quire.capabilities.grammar.tags import TagGrammar
from quire.core.errors import RequestError, reason
from quire.text import exact_json
from quire.text.exact_json import write
from quire.text.params import StructuredOutputs

_WHITESPACE = r"[ \t\n\r]{1,16}"  # where it may be: models have been seen to write nothing else
_LONGEST_GBNF = 2**14  # characters: it is read by Python
_MOST_TAGS = 1_024
_FIELD = "structured_outputs"
_FORMATS = {
    *("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"),
    "unknown",
}
_IDLE: Mapping[str, Sequence[Any]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),  # as zod says of any record
}

Json = dict[str, Any]


def grammar_source(
    asked: StructuredOutputs,
    token_id: Callable[[str], int | None],
    limits: LLParserLimits,
    order: str = "",
    *,
    additional_properties: bool = False,
) -> str:
    """The grammar of structured outputs, as llguidance reads it; RequestError where there is none.

    token_id: the id of a token by its name. limits: for reading schemas.
    order: of the parts of an output among which the text stands, see ``Reasoning``.
    additional_properties: objects may have others than they name, where a schema leaves it open.
    """
    if asked.disable_additional_properties is not None:
        additional_properties = not asked.disable_additional_properties

    def of_schema(schema: Any) -> str:
        check_depth(schema)
        schema = in_plain_words(edited(schema, [_without_idle_words]))
        if not additional_properties:
            schema = closed(schema)
        schema = edited(schema, [with_read_patterns])
        foreign = Foreign(schema, limits)
        foreign.check()
        return schema_grammar(schema, foreign)

    source = _source(asked)
    return prepared(_within(order, source) if order else source, token_id, of_schema)


def _within(order: str, source: str) -> str:
    several = source.lstrip().startswith("{")
    text, *others = json.loads(source)["grammars"] if several else [{"lark_grammar": source}]
    named = [{"name": "order", "lark_grammar": order}, {**text, "name": "text"}]
    return json.dumps({"grammars": [*named, *others]})


def _source(asked: StructuredOutputs) -> str:
    if asked.json is not None or asked.json_object:
        schema = '{"type": "object"}' if asked.json is None else str(asked.json)
        return f"start: %json {write(_laid_out(exact_json.read(schema), asked))}"
    if asked.regex is not None:
        return str(LLMatcher.grammar_from_regex(asked.regex))
    if asked.choice is not None:
        return f"start: {either(map(literal, dict.fromkeys(asked.choice)))}"
    if asked.grammar is not None:
        return _of_grammar(asked.grammar)
    assert asked.structural_tag is not None
    return _of_tags(exact_json.read(str(asked.structural_tag)))


def _laid_out(schema: Any, asked: StructuredOutputs) -> Json:
    """The schema, with llguidance's keyword for where white space may be."""
    layout: Json = {"whitespace_pattern": asked.whitespace_pattern or _WHITESPACE}
    if asked.disable_any_whitespace:
        layout = {"whitespace_flexible": False}
    schema = schema if isinstance(schema, dict) else {"anyOf": [schema]}
    own = schema.get("x-guidance")
    return {**schema, "x-guidance": {**(own if isinstance(own, dict) else {}), **layout}}


def _without_idle_words(schema: Json) -> Json:
    """The schema without formats that are not understood: by JSON Schema they say nothing.

    Nor do words that ask for what is so anyway, which llguidance does not know.
    """
    idle = {key for key, values in _IDLE.items() if schema.get(key) in values}
    if isinstance(schema.get("format"), str) and schema["format"] not in _FORMATS:
        idle.add("format")
    return {key: value for key, value in schema.items() if key not in idle} if idle else schema


def _of_grammar(text: str) -> str:
    if "::=" in text and len(text) > _LONGEST_GBNF:
        raise RequestError(
            f"{_FIELD}.grammar may have at most {_LONGEST_GBNF:,} characters as GBNF", _FIELD
        )
    try:
        return str(any_to_lark(text))
    except Exception as error:  # it raises plain Exception
        raise RequestError(f"{_FIELD}.grammar cannot be read: {reason(error)}", _FIELD) from None


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
    return StructTag(trigger=heads[0], begin=begin, grammar=write({**layout, **schema}), end=end)


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
    return {"x-guidance": layout, **schema}
