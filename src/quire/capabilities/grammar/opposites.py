"""Which schema allows what another does not, and which two have no value in common."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

from quire.capabilities.grammar.subschemas import pointed, subschemas

Json = Mapping[str, Any]

_TYPES = ("null", "boolean", "number", "string", "array", "object")
_SILENT = {
    *("title", "description", "$comment", "default", "examples", "example"),
    *("$schema", "$id", "id", "$defs", "definitions", "x-guidance"),
}
_MOST_SPENT = 50_000  # steps and parts of what is made, in one schema
_MOST_LEVELS = 16
_LONGEST = 1_024  # characters of the texts that another may not be
_BOUNDS = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}
_SIZES = {  # the opposite: of which type, by which word, and how far off
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
}


class Unsayable(Exception):
    """There are no words for it, or too many are needed."""


class Opposites:
    """Makes opposites of schemas; references are looked up in the root schema."""

    def __init__(self, root: Any) -> None:
        self._root, self._left = root, _MOST_SPENT
        inner = (one for one, _ in subschemas(root) if one is not root)
        self._refers = not any(isinstance(one.get("$id", one.get("id")), str) for one in inner)

    def spend(self, steps: int = 1) -> None:
        """Spend some of a bounded number of steps; Unsayable once all are spent."""
        self._left -= steps
        if self._left < 0:
            raise Unsayable

    def of(self, schema: Any, level: int = 0) -> Any:
        """The schema of all values that ``schema`` does not allow; Unsayable."""
        self.spend()
        if isinstance(schema, bool):
            return not schema
        if not isinstance(schema, dict) or level > _MOST_LEVELS:
            raise Unsayable
        said = {key: one for key, one in schema.items() if key not in _SILENT}
        if "$ref" in said:
            if len(said) > 1:  # drafts differ in whether that is read
                raise Unsayable
            return self.of(self._referred(said["$ref"]), level + 1)
        ways = [way for key, one in said.items() for way in self._against(key, one, level + 1)]
        return ways[0] if len(ways) == 1 else {"anyOf": ways} if ways else False

    def _against(self, key: str, said: Any, level: int) -> list[Any]:
        """Schemas that together allow what one keyword forbids."""
        match key, said:
            case "not", dict() | bool():
                return [said]
            case "type", str() | list():
                return _other_types([said] if isinstance(said, str) else said)
            case "const", _:
                return _other_values([said])
            case "enum", list():
                return _other_values(said)
            case "required", list() if all(isinstance(name, str) for name in said):
                return [{"type": "object", "properties": {name: False}} for name in said]
            case "properties", dict():
                return [
                    {"type": "object", "required": [name], "properties": {name: other}}
                    for name, one in said.items()
                    if (other := self.of(one, level)) is not False
                ]
            case "anyOf", list():
                return [{"allOf": [self.of(one, level) for one in said]}]
            case "allOf", list():
                return [self.of(one, level) for one in said]
            case _, int() | float() | Decimal() if key in _BOUNDS and not isinstance(said, bool):
                return [{"type": "number", _BOUNDS[key]: said}]
            case _, int() if key in _SIZES and not isinstance(said, bool):
                type_, word, further = _SIZES[key]
                return [{"type": type_, word: said + further}] if said + further >= 0 else []
        raise Unsayable

    def apart(self, one: Any, other: Any, type_: Any = None, level: int = 0) -> bool:
        """Whether it is sure that no value, of a type if one is given, fits both; Unsayable."""
        self.spend()
        if one is False or other is False:
            return True
        if not isinstance(one, dict) or not isinstance(other, dict) or level > _MOST_LEVELS:
            return False
        types = [_types({"type": type_, **it} if type_ else it) for it in (one, other)]
        values = [_named(it) for it in (one, other)]
        return (
            not types[0] & types[1]
            or (None not in values and not values[0] & values[1])  # type: ignore[operator]
            or ({"object"} in types and self._objects_apart(one, other, level + 1))
            or self._parts_apart(one, other, type_ or one.get("type"), level + 1)
            or self._parts_apart(other, one, type_ or other.get("type"), level + 1)
        )

    def _parts_apart(self, one: Json, other: Json, type_: Any, level: int) -> bool:
        any_of, all_of = listed(one, "anyOf"), [*listed(one, "allOf")]
        if "$ref" in one:
            all_of.append(self._referred(one["$ref"]))
        if any(self.apart(part, other, type_, level) for part in all_of):
            return True
        return bool(any_of) and all(self.apart(choice, other, type_, level) for choice in any_of)

    def _objects_apart(self, one: Json, other: Json, level: int) -> bool:
        """Whether objects cannot fit both: a required property cannot be as both want it."""
        return any(
            self.apart(_property(one, name), _property(other, name), None, level)
            for name in (*listed(one, "required"), *listed(other, "required"))
            if isinstance(name, str)
        )

    def _referred(self, reference: Any) -> Any:
        found = pointed(self._root, reference) if self._refers else None
        if found is None:
            raise Unsayable
        return found


def listed(schema: Json, key: str) -> Sequence[Any]:
    """The list that a keyword holds; empty where it holds none."""
    found = schema.get(key)
    return found if isinstance(found, list) else ()


def _property(schema: Json, name: str) -> Any:
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    return True if "patternProperties" in schema else schema.get("additionalProperties", True)


def _other_types(types: Sequence[Any]) -> list[Any]:
    if "integer" in types and "number" not in types:
        raise Unsayable
    others = [one for one in _TYPES if one not in types]
    return [{"type": others}] if others else []


def _other_values(values: Sequence[Any]) -> list[Any]:
    texts = {one for one in values if isinstance(one, str)}
    truths = {one for one in values if isinstance(one, bool)}
    numbers = {_exact(one) for one in values if _kind(one) == "number"}
    kinds = {_kind(one) for one in values}
    if kinds & {"array", "object"} or sum(map(len, texts)) > _LONGEST:
        raise Unsayable
    others = _other_types([*kinds])
    if len(truths) == 1:
        others.append({"const": not truths.pop()})
    if texts:
        others.append({"type": "string", "pattern": f"^({_none_of(texts)})$"})
    if numbers:
        ends = sorted(numbers)
        others.append({"type": "number", "exclusiveMaximum": ends[0]})
        others += [
            {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
            for low, high in pairwise(ends)
        ]
        others.append({"type": "number", "exclusiveMinimum": ends[-1]})
    return others


def _exact(number: Any) -> Decimal:
    """A number exactly, as it is written where that is known."""
    return Decimal(getattr(number, "spelled", str(number)))


def _none_of(texts: set[str]) -> str:
    """An expression for all texts but these: it goes along with them up to where one leaves."""
    heads = sorted({one[0] for one in texts if one})
    anything = r"[\s\S]*"
    if not heads:
        return r"[\s\S]+"
    ways = [] if "" in texts else [""]
    ways.append(f"[^{''.join(map(_spelled, heads))}]{anything}")
    for head in heads:
        rest = {one[1:] for one in texts if one.startswith(head)}
        ways.append(f"{_spelled(head)}({_none_of(rest)})")
    return "|".join(ways)


def _spelled(char: str) -> str:
    return char if char.isalnum() or ord(char) > 0x7F else f"\\x{ord(char):02x}"


def _types(schema: Json) -> set[str]:
    """The types that a schema's values may have; all numbers are one type."""
    said = schema.get("type")
    each = listed(schema, "type") or ([said] if isinstance(said, str) else _TYPES)
    types = {"number" if one == "integer" else str(one) for one in each}
    if "const" in schema:
        types &= {_kind(schema["const"])}
    return types & {*map(_kind, listed(schema, "enum"))} if "enum" in schema else types


def _named(schema: Json) -> set[Hashable] | None:
    """The values that a schema names, such that those that JSON takes for the same are the same."""
    if "const" in schema:
        return {_same(schema["const"])}
    return {*map(_same, listed(schema, "enum"))} if "enum" in schema else None


def _same(value: Any) -> Hashable:
    if isinstance(value, list):
        return tuple(map(_same, value))
    if isinstance(value, dict):
        return frozenset((key, _same(one)) for key, one in value.items())
    return _kind(value), value


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float() | Decimal():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
