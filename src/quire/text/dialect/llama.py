"""{"name": ..., "parameters": {...}}, perhaps after <|python_tag|>, ; between several: Llama 3."""

from __future__ import annotations

from quire.text.dialect.calls import Calls
from quire.text.dialect.grammar import Frame
from quire.text.dialect.json_calls import read_calls
from quire.text.dialect.reader import Reading, TextReader

MARK = "<|python_tag|>"
FRAME = Frame(before=('{"name": "NAME", "parameters": ',), after=("}",), between=("; ",), bare=True)


def read(reader: TextReader, calls: Calls) -> Reading[bool]:
    called = False
    while True:
        marked = yield from reader.take(MARK)
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
