"""<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>: GLM 4.5 and later."""

from __future__ import annotations

from dataclasses import replace

from quire.dialect.calls import Calls
from quire.dialect.grammar import Frame
from quire.dialect.one_by_one import Spelling
from quire.dialect.reader import Reader, Reading

OPENS, CLOSES, KEY = "<tool_call>", "</tool_call>", "<arg_key>"
_ARGUMENTS = Spelling(KEY, "</arg_key>", "</arg_value>", CLOSES, value="<arg_value>")
_DENSE = replace(_ARGUMENTS, after="")

FRAME = Frame((OPENS, "NAME\n"), (CLOSES,), ("\n",), arguments=_ARGUMENTS.arguments)
DENSE_FRAME = Frame((OPENS, "NAME"), (CLOSES,), arguments=_DENSE.arguments)  # since 4.7
DENSE_SIGN = "</arg_key><arg_value>"


def read(reader: Reader, calls: Calls) -> Reading[bool]:
    """A call."""
    yield from reader.take(OPENS)
    yield from reader.spaces()
    name = yield from reader.word()
    yield from reader.spaces()
    begins = (yield from reader.peek()) == "<" and calls.accepts(name)
    if not begins:
        return False
    yield from _ARGUMENTS.read_call(reader, calls, name)
    return True
