"""What schemas say with words that llguidance does not have, in words that it has.

``oneOf``, ``not``, ``if`` and dependencies become ``anyOf`` and ``allOf`` where these say exactly
the same. Where they do not, the words stay, or are left out if a wider schema will do. Expressions
are read as JavaScript's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from quire.capabilities.grammar.opposites import Opposites, Unsayable, listed
from quire.capabilities.grammar.subschemas import Json, check_depth, edited, subschemas
from quire.core.errors import RequestError, shown
from quire.text.dialect.expressions import pieces_of

_MOST_CHOICES = 32  # of a oneOf: each is compared with each
_TYPES = {"null", "boolean", "number", "integer", "string", "array", "object"}
_FIELD = "structured_outputs"
_ODD = re.compile("[\0-\x07\x0b\r\x0e-\x1f\x7f\x85\u2028\u2029\ufeff]")
_DEPENDENCIES = ("dependencies", "dependentRequired", "dependentSchemas")
_GROUPS = (("oneOf",), ("not",), ("if", "then", "else"), *((word,) for word in _DEPENDENCIES))
_LEFT_OUT = {
    *("not", "if", "then", "else", *_DEPENDENCIES, "uniqueItems", "propertyNames"),
    *("contains", "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties"),
}
_WITHIN = re.compile(r"/(oneOf|not|if|then|else|dependencies|dependentSchemas)(/|$)")
_COUNTS = ("minProperties", "maxProperties")  # which llguidance knows where all are required
_BESIDE = {"title", "description", "$comment", "default", "examples", "$schema", "x-guidance"}


def in_plain_words(schema: Any) -> Any:
    """The same schema. What there are no other words for stays as it is."""
    if any(_WITHIN.search(str(one.get("$ref", ""))) for one, _ in subschemas(schema)):
        return schema  # what is referred to has to stay where it is
    return edited(schema, [partial(_rewritten, Opposites(schema))])


def widened(schema: Any) -> tuple[Any, Sequence[str]]:
    """A schema that allows all that another does, and the words of that which it does not keep.

    RequestError for one that is too deep.
    """
    check_depth(schema)
    left_out = set[str]()
    wider = edited(in_plain_words(schema), [partial(_without, left_out)])
    return wider, sorted(left_out)


def outlined(schema: Mapping[str, Any]) -> Json:
    """A wide schema of an object: names and types of its properties, those of choices too."""
    choices = [one for key in ("anyOf", "oneOf", "allOf") for one in listed(schema, key)]
    properties = dict[str, Any]()
    for one in (schema, *choices):
        said = one.get("properties") if isinstance(one, Mapping) else None
        for name, value in said.items() if isinstance(said, dict) else ():
            type_ = value.get("type") if isinstance(value, dict) else None
            known = isinstance(type_, str) and type_ in _TYPES
            properties.setdefault(name, {"type": type_} if known else {})
    required = schema.get("required", [])
    properties.update({name: {} for name in required if name not in properties})
    return {"type": "object", "properties": properties, "required": required}


def _without(left_out: set[str], schema: Json) -> Json:
    wide = {key: one for key, one in schema.items() if key not in _LEFT_OUT}
    for word, other in (("pattern", "patternProperties"), ("patternProperties", "pattern")):
        try:
            with_read_patterns({key: one for key, one in wide.items() if key != other})
        except RequestError:
            del wide[word]
            if word == "patternProperties":  # else it would forbid what that allowed
                wide["additionalProperties"] = True
    properties = schema.get("properties")
    if isinstance(properties, dict) and properties.keys() - {*map(str, listed(schema, "required"))}:
        wide = {key: one for key, one in wide.items() if key not in _COUNTS}
    left_out |= schema.keys() - wide.keys()
    if isinstance(choices := wide.get("oneOf"), list):
        left_out.add("oneOf")
        del wide["oneOf"]
        return _beside(wide, [{"anyOf": choices}])
    return wide


def _rewritten(opposites: Opposites, schema: Json) -> Json:
    rest, parts = {**schema}, list[Any]()
    for words in _GROUPS:
        said = {word: schema[word] for word in words if word in schema}
        if not said:
            continue
        try:
            plain = _plain(opposites, said, schema.get("type"))
            opposites.spend(sum(1 for _ in _nodes(plain)))
        except Unsayable:
            continue
        parts += plain
        rest = {key: one for key, one in rest.items() if key not in said}
    return _beside(rest, parts)


def _beside(rest: Json, parts: list[Any]) -> Json:
    """A schema joined with others; keywords that refer to their neighbours stay apart."""
    match parts:
        case []:
            return rest
        case [dict(one)] if not rest.keys() & one.keys() and (
            one.keys() == {"anyOf"} or not rest.keys() - _BESIDE
        ):
            return {**rest, **one}
    own = rest.get("allOf", [])
    return {**rest, "allOf": [*(own if isinstance(own, list) else [{"allOf": own}]), *parts]}


def _plain(opposites: Opposites, said: Json, type_: Any) -> list[Any]:
    """Schemas that together say what ``said`` says of values of a type; Unsayable."""
    match said:
        case {"oneOf": [*choices]} if len(choices) <= _MOST_CHOICES:
            return [_one_of(opposites, choices, type_)]
        case {"not": other}:
            return [opposites.of(other)]
        case {"if": condition, **branches}:
            plain = []
            if "then" in branches:
                plain.append({"anyOf": [opposites.of(condition), branches["then"]]})
            if "else" in branches:
                plain.append({"anyOf": [condition, branches["else"]]})
            return plain
        case {"dependencies": dict(each)} | {"dependentSchemas": dict(each)}:
            return [_dependency(key, one) for key, one in each.items()]
        case {"dependentRequired": dict(each)}:
            return [_dependency(key, one) for key, one in each.items()]
    raise Unsayable


def _dependency(key: str, one: Any) -> Json:
    needed = {"required": one} if isinstance(one, list) else one
    return {"anyOf": [{"properties": {key: False}}, needed]}


def _one_of(opposites: Opposites, choices: Sequence[Any], type_: Any) -> Json:
    """A choice of schemas, each without the values of others that it may overlap with."""
    alone = []
    for i, choice in enumerate(choices):
        met = [
            other
            for j, other in enumerate(choices)
            if j != i and not opposites.apart(choice, other, type_)
        ]
        alone.append({"allOf": [choice, *map(opposites.of, met)]} if met else choice)
    return {"anyOf": alone}


def _nodes(value: Any) -> Iterator[Any]:
    todo = [value]
    while todo:
        yield (one := todo.pop())
        if isinstance(one, (list, dict)):
            todo += one.values() if isinstance(one, dict) else one


def read_pattern(pattern: str, *, wide: bool = False) -> str:
    """An expression in llguidance's words; RequestError where there are none. See ``pieces_of``."""
    try:
        return "".join(pieces_of(pattern, wide=wide))
    except ValueError as error:
        text = f"{_FIELD}: the expression {shown(pattern)} {error}"
        raise RequestError(text, _FIELD) from None


def with_read_patterns(schema: Json) -> Json:
    """A schema, without those in it, whose expressions llguidance reads as they are meant.

    An expression for keys must not be narrower than it is meant where other keys are free.
    """
    found = {**schema}
    if isinstance(pattern := schema.get("pattern"), str):
        found["pattern"] = read_pattern(pattern)
    by_key = schema.get("patternProperties")
    if not isinstance(by_key, dict):
        return found
    others, names = schema.get("additionalProperties", True), schema.get("properties")
    narrow, wide = ({read_pattern(key, wide=one): key for key in by_key} for one in (False, True))
    # Some readers find an expression in such a name, and others do not.
    odd = next((name for name in names or () if _ODD.search(name)), None)
    if odd is not None:
        text = f"{_FIELD}: patternProperties cannot be kept to beside the name {shown(odd)}"
        raise RequestError(text, _FIELD)
    if narrow.keys() != wide.keys() and not isinstance(others, bool) and others != {}:
        raise RequestError(
            f"{_FIELD}: patternProperties cannot be kept to beside a schema of other properties, "
            "where readers of expressions differ in which these are",
            _FIELD,
        )
    chosen = narrow if others is False else wide
    if len(chosen) < len(by_key):
        raise RequestError(f"{_FIELD}: patternProperties holds one expression twice", _FIELD)
    found["patternProperties"] = {read: by_key[key] for read, key in chosen.items()}
    return found
