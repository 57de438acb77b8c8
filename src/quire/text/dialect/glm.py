"""<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>: GLM 4.5 and later."""

from __future__ import annotations

from quire.text.dialect.calls import Calls
from quire.text.dialect.grammar import LINE, Frame
from quire.text.dialect.one_by_one import Spelling
from quire.text.dialect.reader import Reading, TextReader

OPENS, CLOSES, KEY = "<tool_call>", "</tool_call>", "<arg_key>"
_ARGUMENTS = Spelling(KEY, "</arg_key>", "</arg_value>", CLOSES, value="<arg_value>", lines=True)

FRAME = Frame((OPENS, "NAME", LINE), (LINE, CLOSES, LINE), arguments=_ARGUMENTS.arguments)


def read(reader: TextReader, calls: Calls) -> Reading[bool]:
    """A call."""
    yield from reader.take(OPENS)
    yield from reader.spaces()
    name = yield from reader.word()
    yield from reader.spaces()
    return calls.accepts(name) and (yield from _ARGUMENTS.read_call(reader, calls, name))
