"""JSON schemas: every keyword, what refers to others, and what is deep, wide or large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzz.draws import Draws
from fuzz.expressions import expression
from fuzz.texts import LARGE, count, name, number, value, word

Schema = Any  # an object, true or false

_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_FORMATS = (
    *("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"),
    *("unknown", "regex", "json-pointer", "idn-email", "no such format"),
)  # fmt: skip
# What llguidance does not understand, or only at some places.
_SELDOM = {
    *("patternProperties", "minProperties", "maxProperties", "propertyNames", "dependentRequired"),
    *("unevaluatedProperties", "uniqueItems", "contains"),
}
_WRAPS: tuple[Callable[[Schema], Schema], ...] = (
    lambda one: {"type": "array", "items": one},
    lambda one: {"allOf": [one]},
    lambda one: {"anyOf": [one, {"type": "null"}]},
    lambda one: {"type": "object", "properties": {"a": one}, "required": ["a"]},
    lambda one: {"type": "object", "properties": {"a": one}},
    lambda one: {"type": "object", "additionalProperties": one},
    lambda one: {"type": "object", "patternProperties": {"^a": one}},
    lambda one: {"type": "array", "prefixItems": [one], "items": False, "minItems": 1},
    lambda one: {"allOf": [one, one]},
    lambda one: {"anyOf": [one, one]},
)
_ODD_WRAPS: tuple[Callable[[Schema], Schema], ...] = (
    lambda one: {"oneOf": [one]},
    lambda one: {"not": one},
    lambda one: {"if": one, "then": one},
    lambda one: {"type": "array", "contains": one},
    lambda one: {"propertyNames": one},
    lambda one: {"dependentSchemas": {"a": one}},
)


def schema(draws: Draws) -> Schema:
    """One of any form."""
    return draws.pick((_any, _any, _any, _chain, _deep, _wide, _product, _circle))(draws)


def object_schema(draws: Draws) -> Schema:
    """The arguments of a tool: mostly an object's."""
    one = schema(draws)
    if draws.oddly():
        return one
    return {"type": "object", "properties": {"a": one}, **_object(draws)}


def _any(draws: Draws) -> Schema:
    names = [name(draws) for _ in range(draws.size(12))]
    one = _node(draws, names)
    if not names or not isinstance(one, dict):
        return one
    return {**one, "$defs": {each: _node(draws, names) for each in names}}


def _node(draws: Draws, names: list[str]) -> Schema:
    return draws.deeper(lambda: _keywords(draws, names), {"type": "string"})


def _keywords(draws: Draws, names: list[str]) -> Schema:
    if draws.one_in(16):
        return draws.pick(({}, True, False))
    found: dict[str, Any] = {}
    for _ in range(1 + draws.below(2)):
        found.update(
            draws.pick((_typed, _text, _number, _object, _array, _values, _combined, _referring))(
                draws, names
            )
        )
    if draws.oddly():
        found.update({word(draws): value(draws), "description": word(draws)})
    return found


def _typed(draws: Draws, names: list[str]) -> Schema:
    if draws.one_in(4):
        return {"type": [draws.pick(_TYPES) for _ in range(draws.size(7))]}
    return {"type": draws.pick(_TYPES)}


def _text(draws: Draws, names: list[str]) -> Schema:
    bounds: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("minLength", lambda: count(draws)),
        ("maxLength", lambda: count(draws)),
        ("pattern", lambda: expression(draws)),
        ("format", lambda: draws.pick(_FORMATS)),
    )
    return {"type": "string", **_some(draws, bounds)}


def _number(draws: Draws, names: list[str]) -> Schema:
    words = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    bounds = tuple((each, lambda: number(draws)) for each in words)
    return {"type": draws.pick(("integer", "number")), **_some(draws, bounds)}


def _object(draws: Draws, names: list[str] | None = None) -> Schema:
    known = names or []
    properties = {word(draws): _node(draws, known) for _ in range(draws.size(30))}
    bounds: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("required", lambda: [each for each in properties if draws.one_in(2)]),
        ("additionalProperties", lambda: draws.pick((False, True, {"type": "integer"}))),
        ("patternProperties", lambda: {expression(draws): _node(draws, known)}),
        ("minProperties", lambda: count(draws)),
        ("maxProperties", lambda: count(draws)),
        ("propertyNames", lambda: {"pattern": expression(draws)}),
        ("dependentRequired", lambda: {word(draws): [word(draws)]}),
        ("unevaluatedProperties", lambda: False),
    )
    return {"type": "object", "properties": properties, **_some(draws, bounds)}


def _array(draws: Draws, names: list[str]) -> Schema:
    bounds: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("items", lambda: _node(draws, names)),
        ("prefixItems", lambda: [_node(draws, names) for _ in range(draws.size(20))]),
        ("minItems", lambda: count(draws)),
        ("maxItems", lambda: count(draws)),
        ("uniqueItems", lambda: draws.one_in(2)),
        ("contains", lambda: _node(draws, names)),
    )
    return {"type": "array", **_some(draws, bounds)}


def _values(draws: Draws, names: list[str]) -> Schema:
    if draws.one_in(2):
        return {"const": value(draws)}
    return {"enum": [value(draws) for _ in range(draws.size(2_000))]}


def _combined(draws: Draws, names: list[str]) -> Schema:
    how = draws.pick(("oneOf", "not", "if") if draws.oddly() else ("anyOf", "allOf"))
    if how == "not":
        return {"not": _node(draws, names)}
    if how == "if":
        return {each: _node(draws, names) for each in ("if", "then", "else")}
    return {how: [_node(draws, names) for _ in draws.several(8)]}


def _referring(draws: Draws, names: list[str]) -> Schema:
    paths = ("#", "#/$defs/", "#/properties/a", "#/nowhere", "#a", "http://a/b", "#/$defs/a~1b")
    if draws.oddly():
        return {draws.pick(("$ref", "$dynamicRef")): draws.pick(paths)}
    return {"$ref": f"#/$defs/{draws.pick(names)}" if names else "#"}


def _some(draws: Draws, bounds: tuple[tuple[str, Callable[[], Any]], ...]) -> Schema:
    """Each of some keywords or none of it."""
    return {
        word: make()
        for word, make in bounds
        if (draws.oddly() if word in _SELDOM else draws.one_in(3))
    }


def _chain(draws: Draws) -> Schema:
    """Definitions of which each refers to the next, and what the last one is."""
    length, wrap = 1 + draws.length(4_000), _reference_wrap(draws)
    last = _node(draws, [])
    if draws.one_in(4):
        last = {"$ref": "#/$defs/d0"}
    links = {f"d{i}": wrap({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": last}}


def _reference_wrap(draws: Draws) -> Callable[[Schema], Schema]:
    return (lambda one: one) if draws.one_in(3) else _wrap(draws)


def _wrap(draws: Draws) -> Callable[[Schema], Schema]:
    return draws.pick(_ODD_WRAPS if draws.oddly() else _WRAPS)


def _deep(draws: Draws) -> Schema:
    """One in another, by one keyword or by several in turn."""
    wraps = [_wrap(draws) for _ in range(1 + draws.below(3))]
    one = _node(draws, [])
    for level in range(draws.length(70)):
        if len(str(one)) > LARGE:
            break
        one = wraps[level % len(wraps)](one)
    return one


def _wide(draws: Draws) -> Schema:
    """Many of one kind beside each other."""
    size, each = draws.length(6_000), _node(draws, [])
    match draws.below(5):
        case 0:
            return {"type": "object", "properties": {f"{i:x}": each for i in range(size)}}
        case 1:
            return {
                "anyOf": [{"type": "object", "properties": {f"{i}": each}} for i in range(size)]
            }
        case 2:
            return {"enum": [f"{word(draws)}{i}" for i in range(size)]}
        case 3:
            return {"type": "array", "prefixItems": [each] * size}
    return {"type": "object", "patternProperties": {f"^{i}": each for i in range(size)}}


def _product(draws: Draws) -> Schema:
    """All of some choices, which somebody may want to multiply out."""
    number, choices = draws.length(12), 1 + draws.size(8)
    how = "oneOf" if draws.oddly() else "anyOf"
    return {
        "allOf": [
            {how: [{"properties": {f"p{i}{j}": _node(draws, [])}} for j in range(choices)]}
            for i in range(number)
        ]
    }


def _circle(draws: Draws) -> Schema:
    """Definitions that refer to each other at random."""
    size = 1 + draws.length(60)
    names = [f"d{i}" for i in range(size)]
    wraps = [_wrap(draws) for _ in names]
    links = {
        each: wrap({"$ref": f"#/$defs/{draws.pick(names)}"})
        for each, wrap in zip(names, wraps, strict=True)
    }
    return {"$ref": "#/$defs/d0", "$defs": links}
