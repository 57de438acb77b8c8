"""Calls that are spelled as JSON: {"name": ..., "arguments": {...}}, and the families that do so.

Many put them between two marks: <tool_call>{"name": ...}</tool_call>. Mistral begins with
[TOOL_CALLS], and since 2025 writes [TOOL_CALLS]name[ARGS]{...}. Llama 3 has ; between several,
perhaps after <|python_tag|>.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from quire.text.dialect.grammar import ID, NUMBER, Frame
from quire.text.dialect.mending import Mender, mended, quoted
from quire.text.dialect.reader import CallForm, Calls, Reading, TextReader

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
    yield from reader.pass_end(mark)


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
        return None if text is None else quoted(text)
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


def tagged_form(opens: str, closes: str) -> CallForm:
    return CallForm((opens,), partial(_read_tagged, opens, closes))


def each_marked(opens: str, closes: str) -> Frame:
    """Every call has marks of its own."""
    return Frame(
        before=(opens, '\n{"name": "NAME", "arguments": '), after=("}\n", closes), between=("\n",)
    )


def listed(opens: str, closes: str) -> Frame:
    """All calls are one list."""
    return Frame(
        opening=(opens, "["),
        before=('{"name": "NAME", "arguments": ',),
        after=("}",),
        between=(", ",),
        closing=("]", closes) if closes else ("]",),
    )


def in_lines(opens: str, closes: str) -> Frame:
    """Calls stand below each other, between marks that they share: MiniMax M1."""
    return Frame(
        opening=(opens, "\n"),
        before=('{"name": "NAME", "arguments": ',),
        after=("}\n",),
        closing=(closes,),
    )


def numbered(opens: str, closes: str) -> Frame:
    """A list of calls, each with a number: Cohere's."""
    return Frame(
        opening=(opens, "[\n"),
        before=('    {"tool_call_id": "', NUMBER, '", "tool_name": "NAME", "parameters": '),
        after=("}",),
        between=(",\n",),
        closing=("\n]", closes),
    )


def _read_tagged(opens: str, closes: str, reader: TextReader, calls: Calls) -> Reading[bool]:
    yield from reader.take(opens)
    yield from reader.spaces()
    if (yield from reader.take("```")):
        yield from reader.word()
        yield from reader.spaces()
    called = yield from read_calls(reader, calls)
    if called and not calls.incomplete:
        yield from past(reader, closes)
    return called


LLAMA_MARK = "<|python_tag|>"
LLAMA_FRAME = Frame(
    before=('{"name": "NAME", "parameters": ',), after=("}",), between=("; ",), bare=True
)


def read_llama(reader: TextReader, calls: Calls) -> Reading[bool]:
    called = False
    while True:
        marked = yield from reader.take(LLAMA_MARK)
        if marked:
            calls.only_known = False
            yield from reader.spaces()
        if not (yield from read_calls(reader, calls)):
            reader.retreat()
            return called
        called = True
        yield from reader.spaces()
        yield from reader.take(";")
        yield from reader.spaces()


MISTRAL_OPENS, MISTRAL_NUMBERED, MISTRAL_ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
MISTRAL_FRAME = Frame(before=(MISTRAL_OPENS, "NAME", (MISTRAL_NUMBERED, ID), MISTRAL_ARGUMENTS))
MISTRAL_LIST_FRAME = replace(listed(MISTRAL_OPENS, ""), after=((', "id": "', ID, '"'), "}"))


def read_mistral(reader: TextReader, calls: Calls) -> Reading[bool]:
    yield from reader.take(MISTRAL_OPENS)
    yield from reader.spaces()
    if (yield from reader.peek()) in ("[", "{"):
        return (yield from read_calls(reader, calls))
    name = yield from reader.word()
    id = None
    if (yield from reader.take(MISTRAL_NUMBERED)):
        id = yield from reader.word()
    yield from reader.take(MISTRAL_ARGUMENTS)
    yield from reader.spaces()
    return calls.accepts(name) and (yield from read_arguments(reader, calls, name, id))
