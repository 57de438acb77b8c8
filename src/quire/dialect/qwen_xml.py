"""<tool_call><function=f><parameter=a>1</parameter></function></tool_call>: Qwen 3 Coder, 3.5."""

from __future__ import annotations

from quire.dialect.calls import Calls
from quire.dialect.grammar import Frame
from quire.dialect.one_by_one import Spelling
from quire.dialect.reader import Reader, Reading

OPENS, CLOSES = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_ENDS = "<function=", "</function>"
_ARGUMENTS = Spelling("<parameter=", ">", "</parameter>", FUNCTION_ENDS, margin=True)

FRAME = Frame(
    before=(OPENS, f"\n{FUNCTION}NAME>\n"),
    after=(f"{FUNCTION_ENDS}\n", CLOSES),
    between=("\n",),
    arguments=_ARGUMENTS.arguments,
)


def read(reader: Reader, calls: Calls) -> Reading[bool]:
    """A call."""
    yield from reader.take(OPENS)  # some leave it out
    yield from reader.spaces()
    if not (yield from reader.take(FUNCTION)):
        return False
    name = yield from reader.word()
    if not calls.accepts(name) or not (yield from reader.take(">")):
        return False
    yield from _ARGUMENTS.read_call(reader, calls, name)
    yield from reader.spaces()
    if (yield from reader.take(CLOSES)):
        reader.use()
    else:
        reader.retreat()
    return True
