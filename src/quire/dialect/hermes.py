"""<tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen 2.5 and 3, SmolLM 3."""

from __future__ import annotations

from quire.dialect.calls import Calls
from quire.dialect.grammar import Frame
from quire.dialect.json_calls import past, read_calls
from quire.dialect.reader import Reader, Reading

OPENS, CLOSES = "<tool_call>", "</tool_call>"
FRAME = Frame(
    before=(OPENS, '\n{"name": "NAME", "arguments": '), after=("}\n", CLOSES), between=("\n",)
)


def read(reader: Reader, calls: Calls) -> Reading[bool]:
    yield from reader.take(OPENS)
    yield from reader.spaces()
    called = yield from read_calls(reader, calls)
    if called:
        yield from past(reader, CLOSES)
    return called
