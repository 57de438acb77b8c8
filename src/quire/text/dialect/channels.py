"""Answers in which content stands between marks too, or below a name: Kimi K3's, Functionary's.

The marks around content are left out, whether or not calls are looked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
        """See ``Dialect.parser``."""
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
