"""What of a JSON schema is left to llguidance, and what it may be trusted with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from quire.capabilities.grammar.numbers import shifted
from quire.capabilities.grammar.subschemas import edited, pointed, subschemas
from quire.core.errors import RequestError, shown
from quire.text.exact_json import write

Json = Mapping[str, Any]

_DEFINITIONS = ("$defs", "definitions")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_VALUES = ("const", "enum")
_WORDS = {"default", "examples", "example", "title", "description", "$comment"}  # bind nobody
_BEYOND = 18  # digits: it has no ranges that begin there
_MOST_PLACES = 400
_LONGEST_REASON = 400  # characters, of the library's own
_PLAIN = re.compile(r"[^/~%]+")
_FARTHEST = 10**18 - 128  # the last float below
_ESCAPES = 'nrbtf\\"'  # without \\u, by which a key could be taken for another
_LAYOUT = "x-guidance"  # llguidance's word for how JSON is laid out
_QUOTED = re.compile(r"\n *(?:while processing|\d+ \|)")  # what follows is the grammar, or where
_PLACE = re.compile(r"\n *while processing [^\n]*?(#/[^\n]*)")
_UNKNOWN = re.compile(r"Unimplemented keys: \[(.*?)\]")
_ELSEWHERE = re.compile(r"Resource ('.*?') is not present.*", re.DOTALL)
_KINDS = {"f64": "a number", "u64": "a count", "usize": "a count", "string": "a text"}
_EXPECTED = re.compile(rf"Expected ({'|'.join(_KINDS)}) for '(\w+)'", re.IGNORECASE)
_ANCHORED = re.compile(r"lookarounds not supported.*", re.DOTALL)
_TOO_LARGE = re.compile(r"Unable to determine if regex is empty.*", re.DOTALL)
_EMPTY = re.compile(r"Regex is empty:.*", re.DOTALL)
_UNSATISFIABLE = "Unsatisfiable schema"
_FIELD = "structured_outputs"
_SCHEMA = "%json "  # in a grammar
_NOT_COMPILED = "failed to compile JSON schema: "


class Unfit(Exception):
    """A part cannot stand alone."""


class Impossible(Exception):
    """There is no value that a schema allows."""


class Foreign:
    """Parts of one schema as llguidance reads them."""

    def __init__(self, schema: Any, limits: LLParserLimits) -> None:
        own = schema.get(_LAYOUT, {}) if isinstance(schema, dict) else {}
        if not isinstance(own, dict):
            raise RequestError(f"{_FIELD}: {_LAYOUT} must be an object", _FIELD)
        self._layout = own
        self._schema = schema
        self._limits = limits
        known = {"whitespace_flexible", "whitespace_pattern"}
        inner = (one for one, _ in subschemas(schema) if one is not schema)
        self._alone = own.keys() <= known and not any(
            isinstance(one.get("$id", one.get("id")), str) for one in inner
        )

    @property
    def white_space(self) -> str | None:
        """An expression for it; None: there is none."""
        if not self._layout.get("whitespace_flexible", True):
            return None
        return str(self._layout.get("whitespace_pattern") or r"[ \t\n\r]+")

    def check(self) -> None:
        """RequestError where llguidance does not understand the schema, or nothing fits it."""
        if why := self._why_not(self._json(edited(self._schema, [_harmless]))):
            raise RequestError(f"{_FIELD}: {why}", _FIELD)

    def resolve(self, reference: Any) -> Any:
        """What is referred to."""
        found = pointed(self._schema, reference) if self._alone else None
        if found is None:
            raise Unfit
        return found

    def part(self, schema: Json) -> str:
        """Text for a part, with what it refers to. Impossible; Unfit: it cannot stand alone."""
        if not self._alone:
            raise Unfit
        needed: dict[str, dict[str, Any]] = {}
        todo: list[Any] = [schema]
        while todo:
            for one, _ in subschemas(todo.pop()):
                if "$ref" not in one:
                    continue
                found = self.resolve(one["$ref"])
                kind, *names = str(one["$ref"])[2:].split("/")
                if kind not in _DEFINITIONS or not _PLAIN.fullmatch("/".join(names)):
                    raise Unfit
                if (name := names[0]) not in needed.setdefault(kind, {}):
                    needed[kind][name] = found
                    todo.append(found)
        alone = {key: one for key, one in schema.items() if key not in _DEFINITIONS} | needed
        if isinstance(self._schema, dict) and "$schema" in self._schema:
            alone["$schema"] = self._schema["$schema"]
        return self._possible(self._json(alone))

    def whole(self) -> str:
        return self._json(self._schema)

    def text(self, said: Json) -> str:
        """Text for a string, in any spelling of its characters; Impossible."""
        source = f"{_SCHEMA}{write({**said, 'type': 'string', _LAYOUT: self._layout})}"
        sure = len(said) < 2 and "pattern" not in said  # to look takes a millisecond
        return source if sure else self._possible(source)

    def multiple(self, said: Json, *, whole: bool) -> str:
        """Text for a multiple of a number, with bounds, so that its digits come to an end."""
        ends = {key: said[key] for key in _BOUNDS if key in said}
        if "minimum" not in ends and "exclusiveMinimum" not in ends:
            ends["minimum"] = -_FARTHEST
        if "maximum" not in ends and "exclusiveMaximum" not in ends:
            ends["maximum"] = _FARTHEST
        type_ = "integer" if whole else "number"
        return self._possible(self._json({"type": type_, "multipleOf": said["multipleOf"], **ends}))

    def _possible(self, source: str) -> str:
        if _UNSATISFIABLE in self._why_not(source):
            raise Impossible
        return source

    def _why_not(self, source: str) -> str:
        """Why llguidance refuses a source; "" if it does not."""
        # Of the schema alone: to read a grammar around it takes several times as long.
        alone = f'{{"grammars": [{{"json_schema": {source.removeprefix(_SCHEMA)}}}]}}'
        why = LLMatcher.validate_grammar(alone, limits=self._limits)
        return in_own_words(f"{_NOT_COMPILED}{why}") if why else ""

    def _json(self, schema: Any) -> str:
        for one, _ in subschemas(schema):
            for key, number in _numbers(one):
                if not (_is_step if key == "multipleOf" else _is_exact)(number):
                    raise RequestError(
                        f"{_FIELD}: {key} {shown(write(number))} is a number that cannot be kept "
                        "to exactly, beside what else the schema says of the value",
                        _FIELD,
                    )
        if isinstance(schema, bool):
            schema = {"anyOf": [schema]}  # it takes nothing but objects
        bare = edited(schema, [_without_words])
        wanted = self._layout.get("json_allowed_escapes", _ESCAPES)
        escapes = "".join(one for one in str(wanted) if one in _ESCAPES)
        layout = {**self._layout, "json_allowed_escapes": escapes}
        return f"{_SCHEMA}{write({**bare, _LAYOUT: layout})}"


def in_own_words(why: str) -> str:
    """Why llguidance refuses a grammar, without quoting text that we made of a schema."""
    of_schema = why.partition(_NOT_COMPILED)[2]
    if not of_schema:
        return why.strip()[:_LONGEST_REASON]
    at = _PLACE.search(of_schema)
    found = _QUOTED.split(of_schema)[0].strip()
    if found.startswith("oneOf"):
        found = "oneOf cannot be kept to where a value might fit two of its schemas: anyOf can"
    elif keys := _UNKNOWN.match(found):
        found = f"{keys[1].replace(chr(34), '')} cannot be kept to"
    found = _ELSEWHERE.sub(r"\1 is not present in the schema, and nothing is fetched", found)
    found = _EXPECTED.sub(lambda kind: f"{kind[2]} must be {_KINDS[kind[1].lower()]}", found)
    found = _ANCHORED.sub("an expression may have ^ and $ at its ends only", found)
    found = _TOO_LARGE.sub("what is said of a text is too complex", found)
    found = _EMPTY.sub("what is said of a text contradicts itself", found)
    return found[:_LONGEST_REASON] + (f" (in {shown(at[1])})" if at else "")


def _numbers(schema: Json) -> Iterator[tuple[str, int | Decimal]]:
    """The numbers in a schema that bind, each with its keyword."""
    for key in (*_BOUNDS, *_VALUES, "multipleOf"):
        todo = [schema.get(key)]
        while todo:
            one = todo.pop()
            if isinstance(one, (list, dict)):
                todo += one.values() if isinstance(one, dict) else one
            elif isinstance(one, (int, Decimal)) and not isinstance(one, bool):
                yield key, one


def _is_exact(number: int | Decimal) -> bool:
    """Whether a number survives as a float, which llguidance makes of it."""
    if Decimal(number).adjusted() >= _BEYOND:
        return False
    back = float(number)
    return Decimal(back) == number or (
        isinstance(number, Decimal) and Decimal(repr(back)) == number
    )


def _is_step(number: int | Decimal) -> bool:
    """Whether llguidance reads a ``multipleOf`` exactly, which it multiplies by ten."""
    if not _is_exact(number):
        return False
    value, places = abs(float(number)), 0
    while value % 1 and places < _MOST_PLACES:
        value, places = value * 10, places + 1
    return Decimal(value) == shifted(Decimal(number).copy_abs(), places)


def _harmless(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without the keywords whose numbers llguidance would change."""
    kinds = {"const": object, "enum": list}
    wrong = {key for key, number in _numbers(schema) if not _is_exact(number)}
    return {
        key: value
        for key, value in schema.items()
        if key not in wrong or not isinstance(value, kinds.get(key, (int, Decimal)))
    }


def _without_words(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in _WORDS}
