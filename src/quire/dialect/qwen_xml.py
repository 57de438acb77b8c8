"""<tool_call><function=f><parameter=a>1</parameter></function></tool_call>: Qwen 3 Coder, 3.5."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from quire.dialect import literals
from quire.dialect.calls import Calls
from quire.dialect.reader import Reader, Reading

OPENS, CLOSES = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_ENDS = "<function=", "</function>"
PARAMETER, PARAMETER_ENDS = "<parameter=", "</parameter>"

_LONGEST_KEY = 256  # characters
_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def read(reader: Reader, calls: Calls) -> Reading[bool]:
    """A call whose arguments are told as they come: those that are texts, bit by bit."""
    yield from reader.take(OPENS)  # some leave it out
    yield from reader.spaces()
    if not (yield from reader.take(FUNCTION)):
        return False
    name = yield from reader.word()
    if not calls.accepts(name) or not (yield from reader.take(">")):
        return False
    calls.begin(name)
    if (yield from _read_parameters(reader, calls, calls.tools.get(name, {}))):
        calls.give("}")
        reader.use()
        yield from reader.spaces()
        if not (yield from reader.take(FUNCTION_ENDS)):
            reader.retreat()
        reader.use()
    calls.end()
    yield from reader.spaces()
    if (yield from reader.take(CLOSES)):
        reader.use()
    else:
        reader.retreat()
    return True


def _read_parameters(reader: Reader, calls: Calls, schema: Mapping[str, Any]) -> Reading[bool]:
    """All of them, as members of a JSON object that is left open; False if the text ends first."""
    opening = "{"
    known = schema.get("properties")
    while True:
        yield from reader.spaces()
        if not (yield from reader.take(PARAMETER)):
            if opening == "{":
                calls.give(opening)
            ended = not (yield from reader.peek())
            reader.retreat()
            return not ended
        key = yield from reader.until(">", _LONGEST_KEY)
        if key is None:
            reader.retreat()
            return not reader.ended
        reader.use()
        calls.give(f"{opening}{_quoted(key)}: ")
        opening = ", "
        types = _types(known.get(key) if isinstance(known, Mapping) else None)
        if not (yield from _read_value(reader, calls, types)):
            return False


def _read_value(reader: Reader, calls: Calls, types: frozenset[str]) -> Reading[bool]:
    """One parameter, up to its end or where it must have been forgotten; False at the text's."""
    pieces: list[str] = []

    def say(text: str) -> None:
        calls.give(_quoted(text)[1:-1])

    plain = types <= {"string"}
    yield from reader.take("\n")
    reader.use()
    if plain:
        calls.give('"')
    ends = (PARAMETER_ENDS, PARAMETER, FUNCTION_ENDS)
    space, mark = yield from reader.flow(say if plain else pieces.append, ends)
    last = space.removesuffix("\n")
    if plain:
        say(last)
    if not mark:
        return False
    calls.give('"' if plain else _spelled("".join(pieces) + last, types))
    if mark == PARAMETER_ENDS:
        reader.pass_mark(mark)
    return True


def _types(schema: object) -> frozenset[str]:
    """The types that a parameter may have; none if its schema does not say."""
    if not isinstance(schema, Mapping):
        return frozenset()
    named = schema.get("type")
    found = {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        for choice in choices if isinstance(choices, list) else ():
            found |= _types(choice)
    if not found and ("$ref" in schema or "allOf" in schema):
        found = {*_TYPES, "string"}
    return frozenset(one for one in found if isinstance(one, str))


def _spelled(text: str, types: frozenset[str]) -> str:
    """A value as JSON. What does not look like one of its types is a text."""
    spelled = text.strip()
    if spelled in ("True", "False", "None"):
        spelled = {"True": "true", "False": "false", "None": "null"}[spelled]
    wanted = tuple(kind for name in types for kind in _TYPES.get(name, ()))
    try:
        value = json.loads(spelled)
    except (ValueError, RecursionError):
        try:
            value = literals.value(literals.parse(spelled))
        except (literals.NoLiteral, RecursionError):
            return _quoted(text)
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        return _quoted(text)
    try:
        return literals.as_json(value)
    except literals.NoLiteral:
        return _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
