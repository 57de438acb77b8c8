"""Arguments that are written one after the other, texts among them as they are: Qwen's and GLM's.

What a value means depends on the tool's schema: "5" is a number only where that says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.dialect import literals
from quire.dialect.calls import Calls
from quire.dialect.grammar import Rules, Schema, literal, members
from quire.dialect.plain_text import text_terminal, values
from quire.dialect.reader import Reader, Reading
from quire.errors import RequestError, shown

_LONGEST_KEY = 256  # characters
_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True)
class Spelling:
    """``key`` NAME ``named``, a value and ``ends``.

    value: a mark before the value, if there is one.
    margin: a line's end on either side of a value, which is not of it.
    after: what follows an argument when all is as it should be.
    call_ends: what ends all of them, also where ``ends`` has been forgotten.
    """

    key: str
    named: str
    ends: str
    call_ends: str
    value: str = ""
    margin: bool = False
    after: str = "\n"

    # -- for grammars --------------------------------------------------------------------------

    def arguments(self, rules: Rules, schema: Schema) -> str:
        """See ``Frame.arguments``."""
        parameters = []
        line = "\n" if self.margin else ""
        for key, one, required in members(schema):
            if set(key) & set("<>\n") or len(key) > _LONGEST_KEY:
                text = f"this model's calls cannot have an argument {shown(key)}"
                raise RequestError(text, "tools")
            end = literal(f"{line}{self.ends}{self.after}")
            if _types(one) <= {"string"}:
                value = rules.terminal(f"{text_terminal(rules, one, self._stops)} {end}")
            else:
                value = f"{rules.json(one)} {end}"
            between = f"{self.after}{self.value}" if self.value else line
            spelled = f"{literal(self.key + key + self.named + between)} {value}"
            parameters.append(spelled if required else f"({spelled})?")
        return " ".join(parameters)

    @property
    def _stops(self) -> tuple[str, str, str]:
        return self.ends, self.key, self.call_ends

    # -- for readers ---------------------------------------------------------------------------

    def read_call(self, reader: Reader, calls: Calls, name: str) -> Reading[None]:
        """A call's arguments and what ends them, told as they come: texts bit by bit."""
        calls.begin(name)
        if (yield from self._read(reader, calls, calls.tools.get(name, {}))):
            calls.give("}")
            reader.use()
            yield from reader.spaces()
            if not (yield from reader.take(self.call_ends)):
                reader.retreat()
        calls.end()

    def _read(self, reader: Reader, calls: Calls, schema: Mapping[str, Any]) -> Reading[bool]:
        """All of them, as members of a JSON object left open; False if the text ends first."""
        opening = "{"
        known = schema.get("properties")
        while True:
            yield from reader.spaces()
            if not (yield from reader.take(self.key)):
                if opening == "{":
                    calls.give(opening)
                ended = not (yield from reader.peek())
                reader.retreat()
                return not ended
            key = yield from reader.until(self.named, _LONGEST_KEY)
            if key is None:
                reader.retreat()
                return not reader.ended
            reader.use()
            calls.give(f"{opening}{literals.quoted(key)}: ")
            opening = ", "
            types = _types(known.get(key) if isinstance(known, Mapping) else None)
            if not (yield from self._read_value(reader, calls, types)):
                return False

    def _read_value(self, reader: Reader, calls: Calls, types: frozenset[str]) -> Reading[bool]:
        """One value, up to its end or where that must have been forgotten; False at the text's."""
        pieces: list[str] = []

        def say(text: str) -> None:
            calls.give(literals.quoted(text)[1:-1])

        plain = types <= {"string"}
        if self.value:
            yield from reader.spaces()
            yield from reader.take(self.value)
        if self.margin:
            yield from reader.take("\n")
        reader.use()
        if plain:
            calls.give('"')
        space, mark = yield from reader.flow(say if plain else pieces.append, self._stops)
        last = space.removesuffix("\n") if self.margin else space
        if plain:
            say(last)
        if not mark:
            return False
        calls.give('"' if plain else _spelled("".join(pieces) + last, types))
        if mark == self.ends:
            reader.pass_mark(mark)
        return True


def _types(schema: object) -> frozenset[str]:
    """The types that an argument may have; none if its schema does not say."""
    if not isinstance(schema, Mapping):
        return frozenset()
    said = schema.get("type")
    found = {said} if isinstance(said, str) else set(said) if isinstance(said, list) else set()
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        for choice in choices if isinstance(choices, list) else ():
            found |= _types(choice)
    named = values(schema) or []
    odd = schema.keys() & {"$ref", "allOf"} or any(not isinstance(value, str) for value in named)
    if not found and odd:
        found = {*_TYPES, "string"}
    return frozenset(one for one in found if isinstance(one, str))


def _spelled(text: str, types: frozenset[str]) -> str:
    """A value as JSON. What does not look like one of its types is a text."""
    spelled = text.strip()
    if spelled in ("True", "False", "None"):
        spelled = {"True": "true", "False": "false", "None": "null"}[spelled]
    try:
        spelled = literals.as_json(spelled)
    except literals.NoLiteral:
        return literals.quoted(text)
    value = json.loads(spelled)
    wanted = {kind for name in types for kind in _TYPES.get(name, ())}
    return spelled if type(value) in {*wanted, str} else literals.quoted(text)
