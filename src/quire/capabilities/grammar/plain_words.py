"""What schemas say with words that llguidance does not have, in words that it has.

``oneOf``, ``not``, ``if`` and dependencies become ``anyOf`` and ``allOf`` where these say exactly
the same. Where they do not, the words stay, or are left out if a wider schema will do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from quire.capabilities.grammar.opposites import Opposites, Unsayable, listed
from quire.capabilities.grammar.subschemas import Json, check_depth, edited, subschemas

_MOST_CHOICES = 32  # of a oneOf: each is compared with each
_DEPENDENCIES = ("dependencies", "dependentRequired", "dependentSchemas")
_GROUPS = (("oneOf",), ("not",), ("if", "then", "else"), *((word,) for word in _DEPENDENCIES))
_LEFT_OUT = {
    *("not", "if", "then", "else", *_DEPENDENCIES, "uniqueItems", "propertyNames"),
    *("contains", "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties"),
}
_WITHIN = re.compile(r"/(oneOf|not|if|then|else|dependencies|dependentSchemas)(/|$)")
_COUNTS = ("minProperties", "maxProperties")  # which llguidance knows where all are required
_LOOKS_AROUND = re.compile(r"\(\?<?[=!]")
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
            properties.setdefault(name, {} if type_ is None else {"type": type_})
    return {"type": "object", "properties": properties, "required": schema.get("required", [])}


def _without(left_out: set[str], schema: Json) -> Json:
    wide = {key: one for key, one in schema.items() if key not in _LEFT_OUT}
    if _LOOKS_AROUND.search(str(wide.get("pattern"))):
        del wide["pattern"]
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
    """A schema and others that hold too. Words that are about their neighbours stay apart."""
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
    """Schemas that say together what ``said`` does of values of a type; Unsayable."""
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
    """Each choice, without those of the others that it could meet."""
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
