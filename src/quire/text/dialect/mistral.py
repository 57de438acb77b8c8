"""[TOOL_CALLS][{"name": ..., "arguments": {...}}], and since 2025 [TOOL_CALLS]name[ARGS]{...}."""

from __future__ import annotations

from dataclasses import replace

from quire.text.dialect import tagged
from quire.text.dialect.calls import Calls
from quire.text.dialect.grammar import ID, Frame
from quire.text.dialect.json_calls import read_arguments, read_calls
from quire.text.dialect.reader import Reading, TextReader

OPENS, NUMBERED, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
FRAME = Frame(before=(OPENS, "NAME", (NUMBERED, ID), ARGUMENTS))
LIST_FRAME = replace(tagged.listed(OPENS, ""), after=((', "id": "', ID, '"'), "}"))


def read(reader: TextReader, calls: Calls) -> Reading[bool]:
    yield from reader.take(OPENS)
    yield from reader.spaces()
    if (yield from reader.peek()) in ("[", "{"):
        return (yield from read_calls(reader, calls))
    name = yield from reader.word()
    id = None
    if (yield from reader.take(NUMBERED)):
        id = yield from reader.word()
    yield from reader.take(ARGUMENTS)
    yield from reader.spaces()
    return calls.accepts(name) and (yield from read_arguments(reader, calls, name, id))
