"""Grammars by which a model writes nothing but calls of the tools that there are.

They are in llguidance's dialect of Lark. Schemas are embedded, each as a grammar of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.errors import RequestError

Schema = Mapping[str, Any]
Spell = Callable[[str], str]
"""How a grammar spells a text or a mark, which may be a token of its own."""

NUMBER = "\0number"
"""Of a frame's parts: any number."""

_LAYOUT = {"whitespace_pattern": r"[ \t\n\r]{1,16}"}  # models have been seen to write nothing else
_TEXT = "/(?s:.*)/"
_NO_CALL = r"/[^\[{<](?s:.*)/"
_DEFINITIONS = ("$defs", "definitions")
_BY_NAME = {"properties", "patternProperties", "dependentSchemas", *_DEFINITIONS}
_PLAIN = {"type", "properties", "required", "additionalProperties", *_DEFINITIONS}
_WORDS = {"title", "description", "default", "examples"}  # which bind nobody
_SAID = {*_WORDS, "$schema", "$id"}


@dataclass
class Rules:
    """A grammar while it is made. What adds to it gives the name of what it has added."""

    lines: list[str] = field(default_factory=list)

    def rule(self, expression: str, *, lazy: bool = False) -> str:
        return self._add("r", "[lazy]" if lazy else "", expression)

    def terminal(self, expression: str) -> str:
        """What is read as one lexeme."""
        return self._add("T", "", expression)

    def json(self, schema: Schema) -> str:
        return self.rule(f"%json {_spelled({'x-guidance': _LAYOUT, **_binding(schema)})}")

    def _add(self, kind: str, how: str, expression: str) -> str:
        name = f"{kind}{len(self.lines)}"
        self.lines.append(f"{name}{how}: {expression}")
        return name


@dataclass(frozen=True)
class Frame:
    """What stands around calls: marks, and texts in which NAME is the tool's.

    opening, closing: around all of them. before, after: around the arguments of each.
    bare: it does not begin with a mark.
    arguments: how they are written.
    """

    before: tuple[str, ...]
    after: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    opening: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    bare: bool = False
    arguments: Callable[[Rules, Schema], str] = Rules.json


def calls_grammar(
    frame: Frame,
    tools: Mapping[str, Schema],
    spell: Spell,
    *,
    several: bool,
    text: bool = False,
    instead: Schema | None = None,
) -> str:
    """A grammar for calls of these tools, whose schemas are those of their arguments.

    several: more than one call may be made.
    text: there may be text around calls, or in place of them; where they are bare, in place only.
    instead: a schema that the answer may follow in place of calls, unless these are bare.
    """
    rules = Rules()

    def line(parts: Sequence[str]) -> str:
        return " ".join("/[0-9]{1,3}/" if part == NUMBER else spell(part) for part in parts)

    def call(before: Sequence[str]) -> str:
        named = {name: line([part.replace("NAME", name) for part in before]) for name in tools}
        each = [
            f"{named[name]} {frame.arguments(rules, schema)} {line(frame.after)}"
            for name, schema in tools.items()
        ]
        return rules.rule(" | ".join(each))

    mark, *beyond = frame.opening or frame.before
    head = spell(mark)
    if frame.bare:
        head, beyond = "", [mark, *beyond]
    if frame.opening:
        one = call(frame.before)
        more = f"({line(frame.between)} {one})*" if several else ""
        unit = rules.rule(f"{line(beyond)} {one} {more} {line(frame.closing)}")
        start = f"{head} {unit}"
    else:
        unit = call(beyond)
        more = f"({line(frame.between)} {head} {unit})*" if several else ""
        start = f"{head} {unit} {more}"
    if instead is not None:
        start = f"{rules.rule(start)} | {rules.json(instead)}"
    elif text and frame.bare:
        start = f"{rules.rule(start)} | {rules.terminal(_NO_CALL)}"
    elif text:
        start = _amid_text(rules, head, unit, several=several)
    return "\n".join([f"start: {start}", *rules.lines])


def _amid_text(rules: Rules, mark: str, unit: str, *, several: bool) -> str:
    text = rules.terminal(_TEXT)
    head = f"{text} {mark}"
    if mark.startswith('"'):  # no token of its own: the first one that comes is it
        head = rules.rule(head, lazy=True)
    return f"({head} {unit}){'*' if several else '?'} {text}"


def members(schema: Schema) -> list[tuple[str, Schema, bool]]:
    """Each property of an object, its schema, and whether it must be there.

    RequestError where the schema asks for more than that.
    """
    if others := sorted(schema.keys() - _PLAIN - _SAID):
        raise RequestError(
            f"where this model must call, a tool's schema may not hold {others[0]} at its top",
            "tools",
        )
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    required = schema.get("required", [])
    properties = {**schema.get("properties", {})}
    for key in required:
        properties.setdefault(key, {})
    return [
        (key, {**definitions, **(one if isinstance(one, Mapping) else {})}, key in required)
        for key, one in properties.items()
        if one is not False
    ]


def literal(text: str) -> str:
    return _spelled(text)


def _binding(schema: Any) -> Any:
    """A schema without what it only says: descriptions are most of many."""
    if not isinstance(schema, Mapping):
        return [_binding(one) for one in schema] if isinstance(schema, list) else schema
    return {key: _bound(key, value) for key, value in schema.items() if key not in _WORDS}


def _bound(key: str, value: Any) -> Any:
    if key in ("enum", "const"):
        return value
    if key in _BY_NAME and isinstance(value, Mapping):
        return {name: _binding(one) for name, one in value.items()}
    return _binding(value)


def _spelled(value: Any) -> str:
    """As JSON, in which "::=" would be taken for the sign of another kind of grammar."""
    return json.dumps(value).replace("::=", r":\u003a=")
