"""Calls as JSON between two marks, in many families: <tool_call>{"name": ...}</tool_call>."""

from __future__ import annotations

from functools import partial

from quire.text.dialect.calls import Calls
from quire.text.dialect.grammar import NUMBER, Frame
from quire.text.dialect.json_calls import past, read_calls
from quire.text.dialect.parser import CallForm
from quire.text.dialect.reader import Reading, TextReader


def form(opens: str, closes: str) -> CallForm:
    return CallForm((opens,), partial(_read, opens, closes))


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


def _read(opens: str, closes: str, reader: TextReader, calls: Calls) -> Reading[bool]:
    yield from reader.take(opens)
    yield from reader.spaces()
    if (yield from reader.take("```")):
        yield from reader.word()
        yield from reader.spaces()
    called = yield from read_calls(reader, calls)
    if called and not calls.incomplete:
        yield from past(reader, closes)
    return called
