"""Content between marks or below a header of its own: Kimi K3, Muse, Functionary.

The marks around content are left out, whether or not calls are looked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from quire.text.dialect import invoked
from quire.text.dialect.grammar import Frame
from quire.text.dialect.json_calls import read_arguments
from quire.text.dialect.reader import (
    CallForm,
    Calls,
    Marks,
    OutputParser,
    ParserState,
    ReadCall,
    Reading,
    TextReader,
    Tools,
)


@dataclass(frozen=True)
class Enclosed:
    """opens: what a channel begins with, or content ends with.

    read: reads a call, or skips what opens content; the last argument says whether there are calls.
    bare: a prompt ends in ``opens``.
    """

    opens: tuple[str, ...]
    read: Callable[[TextReader, Calls, bool], Reading[bool]]
    marks: Marks | None = None
    bare: bool = False

    @property
    def form(self) -> CallForm:
        return self._form(calls=True)

    def parser(self, tools: Tools | None, begun: str = "") -> OutputParser:
        state = ParserState() if self.marks is None else self.marks.state_after(begun)
        return OutputParser(self._form(calls=tools is not None), tools or {}, self.marks, state)

    def _form(self, *, calls: bool) -> CallForm:
        read: ReadCall = partial(_read, self.read, calls)
        return CallForm(self.opens, read, self.bare)


def _read(
    read: Callable[[TextReader, Calls, bool], Reading[bool]],
    looks: bool,
    reader: TextReader,
    calls: Calls,
) -> Reading[bool]:
    return (yield from read(reader, calls, looks))


_SEP = "<|sep|>"
_AROUND_CONTENT = (
    *(f"<|{side}|>response{_SEP}" for side in ("open", "close")),
    f"<|close|>message{_SEP}",
)


def _read_kimi(reader: TextReader, calls: Calls, looks: bool) -> Reading[bool]:
    for mark in _AROUND_CONTENT:
        if (yield from reader.take(mark)):
            reader.use()
            return True
    return looks and (yield from invoked.KIMI_3.read(reader, calls))


KIMI_3_REASONING = Marks(f"<|open|>think{_SEP}", f"<|close|>think{_SEP}")
KIMI_3 = Enclosed((*invoked.KIMI_3.form.opens, *_AROUND_CONTENT), _read_kimi, KIMI_3_REASONING)

_EOM, _ASSISTANT, _MESSAGE, _TO = "<|eom|>", "<|start|>assistant", "<|message|>", "to="
MUSE_MARKS = (_EOM, "<|start|>", _MESSAGE)
MUSE_REASONING = Marks(f"{_TO}self{_MESSAGE}", f"{_EOM}{_ASSISTANT}")
_MUSE = invoked.MUSE.frame
MUSE_FRAME = replace(
    _MUSE,
    before=(" to=NAME", _MESSAGE, *_MUSE.opening, *_MUSE.before),
    after=(*_MUSE.after, *_MUSE.closing),
    between=(_EOM, _ASSISTANT),
    opening=(),
    closing=(),
    bare=True,
)


def _read_muse(reader: TextReader, calls: Calls, looks: bool) -> Reading[bool]:
    """A message's end, or its header; where that names a tool, the call in it."""
    for mark in (_EOM, _ASSISTANT):
        if (yield from reader.take(mark)):
            reader.use()
            return True
    yield from reader.take(_TO)
    name = yield from reader.word()
    if not (yield from reader.take(_MESSAGE)):
        return False
    if name == "user":
        reader.use()
        return True
    return looks and (yield from invoked.MUSE.read(reader, calls))


MUSE = Enclosed((_TO, _EOM, _ASSISTANT), _read_muse, MUSE_REASONING, bare=True)

RECIPIENT, _USER = ">>>", "all"
FUNCTIONARY_FRAME = Frame(("NAME", "\n"), (), (RECIPIENT,), bare=True)


def _read_functionary(reader: TextReader, calls: Calls, looks: bool) -> Reading[bool]:
    yield from reader.take(RECIPIENT)
    name = yield from reader.word()
    if not (yield from reader.take("\n")):
        return False
    if name == _USER:
        reader.use()
        return True
    return looks and calls.accepts(name) and (yield from read_arguments(reader, calls, name))


FUNCTIONARY = Enclosed((RECIPIENT,), _read_functionary, bare=True)
