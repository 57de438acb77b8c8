"""Calls that are spelled as JSON: {"name": ..., "arguments": {...}}."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from quire.dialect.calls import Calls
from quire.dialect.reader import Reader, Reading

_NAME = "name"
_ARGUMENTS = ("arguments", "parameters")
_WRAPPER = "function"  # {"type": "function", "function": {...}}, or the name

_IN_TEXT = re.compile(r'[^"\\]*(?:\\[\s\S][^"\\]*)*')
_BETWEEN = re.compile(r"[-+.:,\s0-9a-zA-Z]*")  # what stands outside of texts and brackets
_SCALAR = re.compile(r"[-+.0-9a-zA-Z]*")
_CLOSING = {"{": "}", "[": "]"}


def read_call(reader: Reader, calls: Calls) -> Reading[bool]:
    """A call in the form of a JSON object; False if it is none, and then nothing has been said.

    Its arguments are told as they come. What else the object holds is passed over.
    """
    name: str | None = None
    held: str | None = None  # arguments that come before the name
    if not (yield from reader.take("{")):
        return False
    while key := (yield from _read_key(reader)):
        if key in (_NAME, _WRAPPER) and name is None and (yield from reader.peek()) == '"':
            name = yield from read_text(reader)
            if name is None or not calls.accepts(name):
                return False
        elif key in _ARGUMENTS and name is not None and held is None:
            return (yield from _finish(reader, (yield from read_arguments(reader, calls, name))))
        elif key == _WRAPPER and name is None:
            return (yield from _finish(reader, (yield from read_call(reader, calls))))
        else:
            value = yield from read_value(reader)
            if value is None:
                return False
            if key in _ARGUMENTS:
                held = value
    if key is None or name is None:
        return False
    given = _as_object(held)
    if given is not None:
        calls.tell(name, given)
    return given is not None


def read_calls(reader: Reader, calls: Calls) -> Reading[bool]:
    """A list of calls, or one; False if the first is none. What follows a good one is left."""
    listed = yield from reader.take("[")
    yield from reader.spaces()
    if not (yield from read_call(reader, calls)):
        return False
    while listed:
        yield from reader.spaces()
        if (yield from reader.take("]")):
            reader.use()
            break
        yield from reader.take(",")
        yield from reader.spaces()
        if not (yield from read_call(reader, calls)):
            reader.retreat()
            break
    return True


def past(reader: Reader, mark: str) -> Reading[None]:
    """Past the mark that ends a call, and past brackets too many before it, if it comes."""
    while (yield from reader.peek()) in ("}", " ", "\n"):
        reader.at += 1
    if (yield from reader.take(mark)):
        reader.use()
    else:
        reader.retreat()


def read_arguments(reader: Reader, calls: Calls, name: str, id: str | None = None) -> Reading[bool]:
    """The arguments of a call: an object, a text that holds one, or null."""
    if (yield from reader.peek()) != "{":
        given = _as_object((yield from read_value(reader)) or "")
        if given is not None:
            calls.tell(name, given, id)
        return given is not None
    start = reader.at
    reader.at += 1
    yield from reader.spaces()
    if (yield from reader.peek()) not in ('"', "}"):
        return False
    reader.at = start
    calls.begin(name, id)
    yield from _read_container(reader, calls.give)
    calls.end()
    return True


def read_text(reader: Reader) -> Reading[str | None]:
    """What a JSON string stands for; None if it is none."""
    start = reader.at
    if not (yield from reader.take('"')):
        return None
    while True:
        text = reader.text
        reader.at = _end_of(_IN_TEXT, text, reader.at)
        if reader.at < len(text) and text[reader.at] == '"':
            reader.at += 1
            value = _decoded(text[start : reader.at])
            return value if isinstance(value, str) else None
        elif reader.ended:
            return None
        else:
            yield


def read_value(reader: Reader) -> Reading[str | None]:
    """A JSON value as it is spelled; None if it is none."""
    start, first = reader.at, (yield from reader.peek())
    if first == '"':
        if (yield from read_text(reader)) is None:
            return None
    elif first in _CLOSING:
        if not (yield from _read_container(reader)):
            return None
    else:
        while True:
            reader.at = _end_of(_SCALAR, reader.text, reader.at)
            if reader.at < len(reader.text) or reader.ended:
                break
            yield
    return reader.text[start : reader.at] or None


def _read_key(reader: Reader) -> Reading[str | None]:
    """The next key of an object, and past its colon; "" at the object's end, None if it breaks."""
    yield from reader.spaces()
    if (yield from reader.take(",")):
        yield from reader.spaces()
    if (yield from reader.take("}")):
        return ""
    key = yield from read_text(reader)
    yield from reader.spaces()
    if not key or not (yield from reader.take(":")):
        return None
    yield from reader.spaces()
    return key


def _finish(reader: Reader, called: bool) -> Reading[bool]:
    """Past what an object holds after a call's arguments, as far as that is well formed."""
    if called:
        while key := (yield from _read_key(reader)):
            if (yield from read_value(reader)) is None:
                key = None
                break
        if key is None:
            reader.retreat()
        reader.use()
    return called


def _read_container(reader: Reader, give: Callable[[str], None] | None = None) -> Reading[bool]:
    """Past an object or a list; False where its brackets do not match, or the text ends.

    give: told what it is spelled like, piece by piece, which is used up then.
    """
    opened: list[str] = []
    in_text = False
    while True:
        text, at, size = reader.text, reader.at, len(reader.text)
        start, closed, broken = at, False, False
        while at < size and not closed and not broken:
            if in_text:
                at = _end_of(_IN_TEXT, text, at)
                if at < size:
                    in_text = text[at] != '"'
                    if in_text and not reader.ended:
                        break  # what it escapes is to come
                    at += 1
            else:
                at = _end_of(_BETWEEN, text, at)
                if at < size:
                    char = text[at]
                    if char in _CLOSING:
                        opened.append(_CLOSING[char])
                    elif char == '"':
                        in_text = True
                    else:
                        broken = char != opened.pop()
                        closed = not opened
                    at += not broken
        reader.at = at
        if give is not None:
            give(text[start:at])
            reader.use()
        if closed or broken or reader.ended:
            return closed and not broken
        yield


def _as_object(spelled: str | None) -> str | None:
    """The JSON object that arguments come to; None if they are no object.

    spelled: JSON; None where the model has given no arguments.
    """
    spelled = "null" if spelled is None else spelled
    value = _decoded(spelled)
    if isinstance(value, str):
        spelled, value = value or "null", _decoded(value or "null")
    if value is None and spelled.strip() == "null":
        return "{}"
    return spelled if isinstance(value, dict) else None


def _decoded(spelled: str) -> object:
    """None if it is no JSON."""
    try:
        return json.loads(spelled, strict=False)
    except (ValueError, RecursionError):
        return None


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    return pattern.match(text, at).end()  # type: ignore[union-attr]
