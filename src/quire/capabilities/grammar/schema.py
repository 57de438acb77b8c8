"""JSON schemas as rules of llguidance's dialect of Lark, with numbers as they are written.

llguidance reads JSON schemas too, but every number of theirs through a float, and lets numbers go
on for ever. So what schemas are mostly made of becomes rules here; texts, and what is said with
other words, is left to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

from quire.capabilities.grammar import numbers
from quire.capabilities.grammar.foreign import Foreign, Impossible, Unfit
from quire.capabilities.grammar.lark import either, json_text, literal
from quire.capabilities.grammar.numbers import Bounds
from quire.core.errors import RequestError, shown
from quire.text.exact_json import write

Json = Mapping[str, Any]

_TYPES = ("null", "boolean", "number", "string", "array", "object")
_OF_TYPE: Mapping[str, tuple[str, ...]] = {
    "null": (),
    "boolean": (),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "additionalItems", "prefixItems", "minItems", "maxItems"),
    "object": ("properties", "additionalProperties", "required"),
}
_COMBINED = ("anyOf", "oneOf", "allOf", "$ref", "const", "enum")
_OTHERS = ("patternProperties", "minProperties", "maxProperties")  # left to llguidance
_BINDING = {*_COMBINED, *_OTHERS, "type", *(key for keys in _OF_TYPE.values() for key in keys)}
# Each character of a key has one spelling, so that none is taken for another.
_KEY = r'/"([^"\\\x00-\x1f\x7f]|\\["\\bfnrt]|\\u00(0[0-7bef]|1[0-9a-f]))*"/'
_COMMA = ' "," '
_MOST_PLACES = 256  # of a list, whose rules stand in each other
_TEXT_ENDS = re.compile(r"\\.|/", re.DOTALL)


def schema_grammar(schema: Any, foreign: Foreign) -> str:
    """A grammar for values that a schema allows, in which it can stand for itself.

    RequestError where it cannot be kept to.
    """
    writer = _Writer(schema, foreign)
    try:
        lines = writer.lines()
    except Unfit:  # of parts of it llguidance would not know what they refer to
        return foreign.whole()
    except Impossible:
        raise RequestError(
            "structured_outputs: there is no value that the schema allows", "structured_outputs"
        ) from None
    return "%lark {\n" + "\n".join([*_layout(foreign.white_space), *lines]) + "\n}"


def _layout(white_space: str | None) -> list[str]:
    if white_space is None:
        return []
    pattern = _TEXT_ENDS.sub(lambda found: found[0] if found[0] != "/" else r"\/", white_space)
    return ['%llguidance {"ignore_once": true}', f"%ignore /{pattern}/"]


class _Writer:
    """Writes the rules of one schema. Methods that add a rule return its name."""

    def __init__(self, schema: Any, foreign: Foreign) -> None:
        self._schema, self._foreign = schema, foreign
        self._lines: list[str] = []
        self._shared: dict[str, str] = {}  # rules by what they are for
        self._referred: list[tuple[str, str]] = []  # references, and their rules, yet to write

    def lines(self) -> list[str]:
        start = self._value(self._schema)
        while self._referred:
            reference, name = self._referred.pop()
            self._lines.append(f"{name}: {self._value(self._foreign.resolve(reference))}")
        return [f"start: {start}", *self._lines]

    def _value(self, schema: Any) -> str:
        """A rule for the values that a schema allows. Impossible: there are none."""
        if schema is False:
            raise Impossible
        said = {} if schema is True else {key: schema[key] for key in schema if key in _BINDING}
        if not said:
            return self._anything()
        if said.keys() & set(_OTHERS) or len(_places(said)) > _MOST_PLACES:
            return self._left(schema)
        combined = [key for key in _COMBINED if key in said]
        if not combined:
            return self._of_types(said)
        named = self._named(said)
        if named is not None:
            return named
        if len(said) > 1:
            return self._left(schema)
        match combined[0], said[combined[0]]:
            case "$ref", reference:
                return self._reference(reference)
            case "allOf", [one]:
                return self._value(one)
            case "anyOf" | "oneOf", choices:  # of these it is known that they exclude each other
                return self._one_of(choices, self._value)
        return self._left(schema)

    def _left(self, schema: Json) -> str:
        """A rule that leaves the schema to llguidance."""
        return self._rule(self._foreign.part(schema))

    def _reference(self, reference: str) -> str:
        key = f"$ref {reference}"
        if key not in self._shared:
            self._check_end(reference)
            self._shared[key] = f"d{len(self._shared)}"
            self._referred.append((reference, self._shared[key]))
        return self._shared[key]

    def _check_end(self, reference: str) -> None:
        """RequestError where a reference leads to itself and nothing else."""
        passed = list[Any]()
        found = {"$ref": reference}
        while isinstance(found, dict) and "$ref" in found and found["$ref"] not in passed:
            passed.append(found["$ref"])
            found = self._foreign.resolve(passed[-1])
        if isinstance(found, dict) and found.get("$ref") in passed:
            raise RequestError(
                f"structured_outputs: {shown(reference)} leads to itself, so there is no text",
                "structured_outputs",
            )

    def _one_of(self, choices: Sequence[Any], value: Callable[[Any], str]) -> str:
        possible = []
        for choice in choices:
            try:
                possible.append(value(choice))
            except Impossible:
                continue
        if not possible:
            raise Impossible
        return possible[0] if len(possible) == 1 else self._rule(either(possible))

    def _named(self, said: Json) -> str | None:
        """A rule for named values; None: the schema names none, or says more."""
        if not said.keys() <= {"const", "enum", "type"} or ("const" in said and "enum" in said):
            return None
        types = _types(said)
        values = said["enum"] if "enum" in said else [said["const"]]
        fitting = [one for one in values if any(_is_of(one, type_) for type_ in types)]
        if not fitting:
            raise Impossible
        plain = [self._plain(one) for one in fitting if not isinstance(one, (dict, list))]
        parts = [self._terminal(either(dict.fromkeys(plain)))] if plain else []
        parts += [self._constant(one) for one in fitting if isinstance(one, (dict, list))]
        return self._rule(either(parts))

    def _plain(self, value: Any) -> str:
        number = isinstance(value, (int, Decimal)) and not isinstance(value, bool)
        if number:
            return literal(numbers.literal_of(value))
        return literal(json_text(value) if isinstance(value, str) else write(value))

    def _constant(self, value: Any) -> str:
        """A value as it is, with white space where JSON allows it."""
        if isinstance(value, list):
            return f'"[" {_COMMA.join(map(self._constant, value))} "]"'
        if isinstance(value, dict):
            pairs = (f'{self._plain(key)} ":" {self._constant(one)}' for key, one in value.items())
            return f'"{{" {_COMMA.join(pairs)} "}}"'
        return self._plain(value)

    # -- types ------------------------------------------------------------------------------------

    def _of_types(self, said: Json) -> str:
        return self._one_of(_types(said), lambda type_: self._of_type(type_, said))

    def _of_type(self, type_: str, said: Json) -> str:
        match type_:
            case "object":
                return self._object(said)
            case "array":
                return self._array(said)
            case "string":
                about = {key: said[key] for key in _OF_TYPE["string"] if key in said}
                return self._share(self._foreign.text(about))
            case "null":
                return literal("null")
            case "boolean":
                return self._share_terminal('"true" | "false"')
        return self._number(said, whole=type_ == "integer")

    def _anything(self) -> str:
        """Any value, in any depth."""
        if "" not in self._shared:
            self._shared[""] = name = "any"
            self._lines.append(f"{name}: {either([self._of_type(one, {}) for one in _TYPES])}")
        return self._shared[""]

    def _number(self, said: Json, *, whole: bool) -> str:
        if "multipleOf" in said:
            return self._share(self._foreign.multiple(said, whole=whole))
        bounds = _bounds(said)
        expression = numbers.integers(bounds) if whole else numbers.numbers(bounds)
        if expression is None:
            raise Impossible
        return self._share_terminal(expression)

    def _array(self, said: Json) -> str:
        first, rest = _places(said), said.get("items", True)
        if isinstance(rest, list):
            rest = said.get("additionalItems", True)
        least, most = said.get("minItems", 0), said.get("maxItems")
        try:
            item = self._value(rest)
        except Impossible:
            item, most = "", len(first) if most is None else min(most, len(first))
        items = []
        for schema in first[:most]:
            try:
                items.append(self._value(schema))
            except Impossible:
                most = len(items)
                break
        if most is not None and least > most:
            raise Impossible
        return self._rule(f'"[" {_listed(items, item, least, most)} "]"')

    def _object(self, said: Json) -> str:
        """Properties in their order, then others."""
        required = dict.fromkeys(said.get("required", ()))
        others = said.get("additionalProperties", True)
        properties = {**said.get("properties", {})}
        for key in required:
            properties.setdefault(key, others)
        pairs = []
        for key, schema in properties.items():
            try:
                pair = f'{literal(json_text(key))} ":" {self._value(schema)}'
            except Impossible:
                if key in required:
                    raise
                continue
            pairs.append((self._rule(pair), key in required))
        try:
            more = self._rule(f'{self._key(properties)} ":" {self._value(others)}')
        except Impossible:
            more = ""
        return self._rule(f'"{{" {self._members(pairs, more)} "}}"')

    def _key(self, taken: Collection[str]) -> str:
        """A terminal for keys that are not in ``taken``."""
        key = self._share_terminal(_KEY)
        if not taken:
            return key
        return self._share_terminal(
            f"{key} & ~({either(literal(json_text(one)) for one in taken)})"
        )

    def _members(self, pairs: Sequence[tuple[str, bool]], more: str) -> str:
        """Members of an object with commas between them; ``more`` may follow."""
        rest = f'("," {more})*' if more else ""
        at = next((i for i, (_, required) in enumerate(pairs) if required), None)
        if at is not None:
            before = " ".join(f'({pair} ",")?' for pair, _ in pairs[:at])
            return f"{before} {pairs[at][0]} {_followed(pairs[at + 1 :])} {rest}"
        some = [f"{self._some([pair for pair, _ in pairs])} {rest}"] if pairs else []
        if more:
            some.append(f"{more} {rest}")
        return f"({either(some)})?" if some else ""

    def _some(self, pairs: Sequence[str]) -> str:
        """At least one of the pairs, by halves, so that no rule leads through all others."""
        if len(pairs) == 1:
            return pairs[0]
        half = len(pairs) // 2
        rest = _followed([(pair, False) for pair in pairs[half:]])
        return self._rule(f"{self._some(pairs[:half])} {rest} | {self._some(pairs[half:])}")

    # -- rules ------------------------------------------------------------------------------------

    def _rule(self, expression: str) -> str:
        return self._add("r", expression)

    def _terminal(self, expression: str) -> str:
        return self._add("T", expression)

    def _share(self, expression: str) -> str:
        if expression not in self._shared:
            self._shared[expression] = self._rule(expression)
        return self._shared[expression]

    def _share_terminal(self, expression: str) -> str:
        if expression not in self._shared:
            self._shared[expression] = self._terminal(expression)
        return self._shared[expression]

    def _add(self, kind: str, expression: str) -> str:
        name = f"{kind}{len(self._lines)}"
        self._lines.append(f"{name}: {expression}")
        return name


def _types(said: Json) -> Sequence[str]:
    types = said.get("type", _TYPES)
    each = [types] if isinstance(types, str) else types
    if not isinstance(each, (list, tuple)) or not {*map(str, each)} <= {*_TYPES, "integer"}:
        known = ", ".join((*_TYPES, "integer"))
        raise RequestError(
            f"structured_outputs: type must be one or several of {known}, got {shown(types)}",
            "structured_outputs",
        )
    return each


def _places(said: Json) -> Sequence[Any]:
    """The schemas of items by position, in this draft's words or in older ones."""
    items = said.get("items")
    if isinstance(items, list):
        return items
    places: Sequence[Any] = said.get("prefixItems", []) if "additionalItems" not in said else []
    return places


def _followed(pairs: Sequence[tuple[str, bool]]) -> str:
    return " ".join(f'"," {pair}' if required else f'("," {pair})?' for pair, required in pairs)


def _listed(items: Sequence[str], item: str, least: int, most: int | None) -> str:
    """A list's items, first those that have a place of their own."""
    low, high = max(least - len(items), 0), None if most is None else most - len(items)
    if not items:
        if high == 0 or not item:
            return ""
        some = f'{item} ("," {item}){{{max(low - 1, 0)},{"" if high is None else high - 1}}}'
        return some if low else f"({some})?"
    rest = ""
    if item and high != 0:
        rest = f'("," {item}){{{low},{"" if high is None else high}}}'
    for place in range(len(items) - 1, -1, -1):
        one = f"{items[place]} {rest}" if not place else f'"," {items[place]} {rest}'
        rest = one if place < least else f"({one})?"
    return rest


def _bounds(said: Json) -> Bounds:
    """The bounds of a number. In draft 4 exclusiveMinimum is a truth, later a bound."""
    ends: list[Decimal | bool | None] = []
    for name, exclusive, outer in (
        ("minimum", "exclusiveMinimum", max),
        ("maximum", "exclusiveMaximum", min),
    ):
        end, out = _end(said, name), said.get(exclusive, False)
        if not isinstance(out, bool):
            bound = _end(said, exclusive)
            assert bound is not None
            out = end is None or outer(bound, end) == bound
            end = bound if out else end
        ends += [end, out and end is not None]
    least, above, most, below = ends
    return Bounds(least, bool(above), most, bool(below))  # type: ignore[arg-type]


def _end(said: Json, name: str) -> Decimal | None:
    if name not in said:
        return None
    value = Decimal(said[name])
    digits, exponent = value.as_tuple().digits, value.adjusted()
    if max(len(digits), abs(exponent)) > numbers.LONGEST_BOUND:
        raise RequestError(
            f"structured_outputs: {name} may have at most {numbers.LONGEST_BOUND} digits, "
            f"got {shown(write(said[name]))}",
            "structured_outputs",
        )
    return value


def _is_of(value: Any, type_: str) -> bool:
    match value:
        case None:
            return type_ == "null"
        case bool():
            return type_ == "boolean"
        case int():
            return type_ in ("number", "integer")
        case Decimal():
            return type_ == "number" or (type_ == "integer" and numbers.is_whole(value))
        case str():
            return type_ == "string"
        case list():
            return type_ == "array"
    return type_ == "object"
