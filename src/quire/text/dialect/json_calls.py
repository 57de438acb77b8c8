"""Calls that are spelled as JSON: {"name": ..., "arguments": {...}}."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from quire.text.dialect import literals
from quire.text.dialect.calls import Calls
from quire.text.dialect.mending import Mender, mended
from quire.text.dialect.reader import Reading, TextReader

_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
_WRAPPER = "function"  # {"type": "function", "function": {...}}, or the name
_BESIDE = {"type", "id", "tool_call_id"}  # what may stand beside a name that has no arguments

_IN_TEXT = {quote: re.compile(rf"[^{quote}\\]*(?:\\[\s\S][^{quote}\\]*)*") for quote in "\"'"}
_SCALAR = re.compile(r"[-+.0-9a-zA-Z]*")


def read_call(reader: TextReader, calls: Calls) -> Reading[bool]:
    """A call in the form of a JSON object; False if it is not one, and then nothing is reported.

    Arguments are reported as they come. Other fields of the object are skipped.
    """
    name: str | None = None
    held: str | None = None  # arguments that come before the name
    others = set()
    if not (yield from reader.take("{")):
        return False
    while key := (yield from _read_key(reader)):
        if key in (*_NAMES, _WRAPPER) and name is None and (yield from reader.peek()) in _IN_TEXT:
            name = yield from read_text(reader)
            if name is None or not calls.accepts(name):
                return False
        elif key in _ARGUMENTS and name is not None and held is None:
            called = yield from read_arguments(reader, calls, name)
            return (yield from _finish(reader, calls, called))
        elif key == _WRAPPER and name is None:
            return (yield from _finish(reader, calls, (yield from read_call(reader, calls))))
        else:
            value = yield from read_value(reader)
            if value is None:
                return False
            if key in _ARGUMENTS:
                held = value
            others.add(key)
    if key is None or name is None:
        return False
    if held is None and others - _BESIDE:  # which may be its arguments, or not
        return False
    given = _as_object(held)
    if given is not None:
        calls.tell(name, given)
    return given is not None


def read_calls(reader: TextReader, calls: Calls) -> Reading[bool]:
    """Calls in a list or in a row; False if the first is none. What follows a good one is left."""
    listed = yield from reader.take("[")
    yield from reader.spaces()
    if not (yield from read_call(reader, calls)):
        return False
    while not calls.incomplete:
        yield from reader.spaces()
        if listed:
            if (yield from reader.take("]")):
                reader.use()
                return True
            yield from reader.take(",")
            yield from reader.spaces()
        if not (yield from read_call(reader, calls)):
            reader.retreat()
            break
    return True


def past(reader: TextReader, mark: str) -> Reading[None]:
    """Skip the mark that ends a call, and surplus brackets or a fence before it."""
    while (yield from reader.peek()) in ("}", " ", "\n", "`"):
        reader.at += 1
    if (yield from reader.take(mark)):
        reader.use()
    else:
        reader.retreat()


def read_arguments(
    reader: TextReader, calls: Calls, name: str, id: str | None = None
) -> Reading[bool]:
    """The arguments of a call: an object, a text that holds one, or null."""
    if (yield from reader.peek()) != "{":
        given = _as_object((yield from read_value(reader)) or "")
        if given is not None:
            calls.tell(name, given, id)
        return given is not None
    start = reader.at
    reader.at += 1
    yield from reader.spaces()
    if (yield from reader.peek()) not in (*_IN_TEXT, "}"):
        return False
    reader.at = start
    calls.begin(name, id)
    mender = yield from _mend(reader, calls.give)
    if mender.done:
        calls.end()
    else:
        calls.cut(broken=mender.broken)
    return True


def read_text(reader: TextReader) -> Reading[str | None]:
    """The text that a JSON string stands for, mended; None if it is not a string."""
    start, quote = reader.at, (yield from reader.peek())
    if quote not in _IN_TEXT:
        return None
    reader.at += 1
    while True:
        text = reader.text
        reader.at = _end_of(_IN_TEXT[quote], text, reader.at)
        if reader.at < len(text) and text[reader.at] == quote:
            reader.at += 1
            listed = mended(f"[{text[start : reader.at]}]")
            return None if listed is None else str(json.loads(listed)[0])
        elif reader.ended:
            return None
        else:
            yield


def read_value(reader: TextReader) -> Reading[str | None]:
    """A JSON value as it is spelled, mended; None if it is none."""
    start, first = reader.at, (yield from reader.peek())
    if first in _IN_TEXT:
        text = yield from read_text(reader)
        return None if text is None else literals.quoted(text)
    if first in ("{", "["):
        pieces: list[str] = []
        mender = yield from _mend(reader, pieces.append, used=False)
        return "".join(pieces) if mender.done else None
    while True:
        reader.at = _end_of(_SCALAR, reader.text, reader.at)
        if reader.at < len(reader.text) or reader.ended:
            return reader.text[start : reader.at] or None
        yield


def _read_key(reader: TextReader) -> Reading[str | None]:
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


def _finish(reader: TextReader, calls: Calls, called: bool) -> Reading[bool]:
    """Skip the rest of an object after a call's arguments, as far as it is well formed."""
    if called and not calls.incomplete:
        while key := (yield from _read_key(reader)):
            if (yield from read_value(reader)) is None:
                key = None
                break
        if key is None:
            reader.retreat()
        reader.use()
    return called


def _mend(reader: TextReader, give: Callable[[str], None], *, used: bool = True) -> Reading[Mender]:
    """Read an object or a list, as far as it is valid.

    give: called with the repaired text, piece by piece. used: what has been given is done with.
    """
    mender = Mender()
    while True:
        said, reader.at = mender.feed(reader.text, reader.at)
        give(said)
        if used:
            reader.use()
        if mender.done or mender.broken or reader.ended:
            return mender
        yield


def _as_object(spelled: str | None) -> str | None:
    """The JSON object of a call's arguments; None if they are not an object.

    spelled: JSON; None if the model has written no arguments.
    """
    text = "null" if spelled is None else spelled
    if text.startswith('"'):
        text = json.loads(text).strip() or "null"
    if text in ("null", "None"):
        return "{}"
    return mended(text) if text.startswith("{") else None


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    return pattern.match(text, at).end()  # type: ignore[union-attr]
