"""What JSON schemas say of values that are written as they are, without quotes or escapes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire.core.errors import RequestError, shown
from quire.text.dialect.expressions import pieces_of
from quire.text.dialect.grammar import (
    GrammarRules,
    Schema,
    as_schema,
    definitions,
    literal,
    unknown_keyword,
)

_ANYTHING = "(?s:.*)"


def whole(pattern: object) -> str:
    """An expression for texts in which ``pattern`` is found, without slashes around it.

    RequestError for an anchor in the middle, and for what is not understood.
    """
    try:
        pieces = pieces_of(pattern)
    except ValueError as error:
        raise RequestError(f"the expression {shown(pattern)} of a tool {error}", "tools") from None
    return "|".join(_anchored(one, pattern) for one in _alternatives(pieces))


def _anchored(pieces: list[str], pattern: object) -> str:
    head, tail = _ANYTHING, _ANYTHING
    if pieces[:1] == ["^"]:
        head, pieces = "", pieces[1:]
    if pieces[-1:] == ["$"]:
        tail, pieces = "", pieces[:-1]
    if {"^", "$"} & set(pieces):
        raise RequestError(
            f"where this model must call, a pattern may have ^ and $ at its ends only, got "
            f"{shown(pattern)}",
            "tools",
        )
    return f"{head}({''.join(pieces)}){tail}"


def _alternatives(all_pieces: Sequence[str]) -> Iterator[list[str]]:
    """The pieces between the bars that are in no group."""
    pieces: list[str] = []
    depth = 0
    for piece in all_pieces:
        depth += piece.startswith("(") - (piece == ")")
        if piece == "|" and not depth:
            yield pieces
            pieces = []
        else:
            pieces.append(piece)
    yield pieces


_TEXTS = {"type", "enum", "const", "pattern", "minLength", "maxLength"}  # what is said of texts


def text_terminal(
    rules: GrammarRules, schema: Schema, stops: Sequence[str], chars: str = "."
) -> str:
    """A terminal for a text that follows a schema and contains none of ``stops``, which end it.

    chars: an expression for one character. RequestError if the schema asks for more.
    """
    if other := unknown_keyword(schema, _TEXTS):
        raise RequestError(
            f"where this model must call, the schema of a text may not hold {other}", "tools"
        )
    named = values(schema)
    if named is not None:
        texts = [literal(one) for one in named if isinstance(one, str)]
        if not texts:
            raise RequestError("where this model must call, there is no text that fits", "tools")
        return f"({' | '.join(texts)})"
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    marks = "|".join(re.sub(r"([^\w\s<>'\"=\x80-\U0010ffff-])", r"\\\1", mark) for mark in stops)
    parts = [f"/(?s:{chars}{{{least},{most}}})/", f"~/(?s:.*)({marks})(?s:.*)/"]
    if "pattern" in schema:
        parts.append(f"/{whole(schema['pattern'])}/")
    return rules.terminal(" & ".join(parts))


def values(schema: Schema) -> list[Any] | None:
    """The values that a schema names; None if it allows others."""
    named = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return named if isinstance(named, list) else None


_MOST_LEVELS = 32  # of references and unions
_NAMES: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
_ALL = frozenset(_NAMES.values())
_WORDS = {"boolean": ("True", "False"), "null": ("None",)}
_UNIONS = ("anyOf", "oneOf")
_IMPLIED = {"properties": "object", "items": "array"}
_ABOUT = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"pattern", "minLength", "maxLength"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}


def types_of(schema: object, root: Mapping[str, Any], level: int = 0) -> frozenset[str]:
    """The types that a value may have; none where its schema does not say.

    root: the schema that references are looked up in.
    """
    if not isinstance(schema, Mapping) or level > _MOST_LEVELS:
        return frozenset()
    if "$ref" in schema:
        return types_of(referred(schema, root), root, level + 1) or _ALL
    said = schema.get("type")
    listed = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    found = {one for one in listed if isinstance(one, str)}
    for key in _UNIONS:
        choices = schema.get(key)
        for choice in choices if isinstance(choices, list) else ():
            found |= types_of(choice, root, level + 1)
    if not found and (named := values(schema)):
        found = {_NAMES[type(value)] for value in named}
    if not found:  # as those who write schemas by hand leave it out
        found = {kind for key, kind in _IMPLIED.items() if key in schema}
    whole = schema.get("allOf")
    for part in whole if not found and isinstance(whole, list) else ():
        narrower = types_of(part, root, level + 1)
        found = (found & narrower or found) if found else {*narrower}
    return frozenset(found)


def parted(schema: Mapping[str, Any]) -> tuple[list[Schema], list[Schema]]:
    """The schemas of texts that a value may follow, and those of other values.

    RequestError if it cannot be told apart.
    """
    texts: list[Schema] = []
    others: list[Schema] = []
    _part(schema, definitions(schema), texts, others, 0)
    if not texts and not others:
        raise RequestError(f"where this model must call, nothing fits {shown(schema)}", "tools")
    return texts, others


def _part(
    schema: object, root: Schema, texts: list[Schema], others: list[Schema], level: int
) -> None:
    if schema is False:
        return
    said = as_schema(schema)
    types = types_of(said, root)
    choices = next((said[key] for key in (*_UNIONS, "allOf") if key in said), None)
    if "string" not in types and types:
        others.append({**root, **said})
    elif types <= {"string"} and not choices and "$ref" not in said:
        texts.append(said)
    elif level > _MOST_LEVELS:
        raise RequestError("where this model must call, a schema goes too deep", "tools")
    elif "$ref" in said:
        _check(said, {"$ref"})
        _part(referred(said, root), root, texts, others, level + 1)
    elif isinstance(choices, list) and (len(choices) == 1 or "allOf" not in said):
        _check(said, {*_UNIONS, "allOf", "type"})
        for choice in choices:
            _part(choice, root, texts, others, level + 1)
    elif (named := values(said)) is not None:
        for kept, whose in ((True, texts), (False, others)):
            if part := [value for value in named if isinstance(value, str) is kept]:
                whose.append({"enum": part})
    elif isinstance(said.get("type"), list):
        texts.append(of_type(said, "string"))
        others.extend({**root, **of_type(said, one)} for one in types - {"string"})
    else:
        raise RequestError(f"where this model must call, {shown(said)} is too much", "tools")


def python_words(schema: Schema) -> list[str]:
    """How Python, and so a template in Jinja, writes true, false and null, where they may be."""
    if unknown_keyword(schema, ("type", *_UNIONS)):
        return []
    choices = next((schema[key] for key in _UNIONS if key in schema), None)
    if isinstance(choices, list):
        return [word for one in choices if isinstance(one, Mapping) for word in python_words(one)]
    return [word for name in sorted(types_of(schema, schema)) for word in _WORDS.get(name, ())]


def of_type(schema: Schema, type_: str) -> Schema:
    """The part of a schema with several types that is about one of them."""
    kind = "number" if type_ == "integer" else type_
    others: set[str] = set().union(*(_ABOUT[one] for one in _ABOUT if one != kind))
    return {**{key: one for key, one in schema.items() if key not in others}, "type": type_}


def _check(schema: Schema, known: set[str]) -> None:
    if other := unknown_keyword(schema, known):
        raise RequestError(f"where this model must call, a union may not hold {other}", "tools")


def referred(schema: Mapping[str, Any], root: Mapping[str, Any]) -> object:
    """The target of a reference within ``root``; None: it does not exist."""
    head, *path = str(schema["$ref"]).split("/")
    found: object = root if head == "#" else None
    for step in path:
        key = step.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def fits(spelled: str, types: frozenset[str]) -> bool:
    """Whether JSON is a value of one of the types, and no text."""
    value = json.loads(spelled)
    name = _NAMES[type(value)]
    if name == "number" and value.is_integer() and "string" not in types:
        name = "integer"
    return name != "string" and bool(types & ({name, "number"} if name == "integer" else {name}))
