"""One parser for a text that streams and for a whole one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from quire.dialect.calls import Calls, Tools
from quire.dialect.events import Event
from quire.dialect.reader import Reader, Reading

ReadCall = Callable[[Reader, Calls], Reading[bool]]


@dataclass(frozen=True)
class Marks:
    """What stands around a model's reasoning.

    implied: a text begins with reasoning, whether it says so or not.
    """

    start: str
    end: str
    implied: bool = False


@dataclass(frozen=True)
class CallForm:
    """How a model writes its calls.

    opens: the marks that a call begins with; none if it is bare: it begins the answer, and what
    it calls must be a tool that there is.
    read: reads a call, or several that belong together, from its mark on. False: it is none.
    """

    opens: tuple[str, ...]
    read: ReadCall
    bare: bool = False


class Parser(Protocol):
    """What turns one text into events, as it comes."""

    @property
    def is_plain(self) -> bool:
        """Whether nothing is looked for: any text is content."""
        ...

    def push(self, text: str) -> list[Event]:
        """What ``text`` makes known."""
        ...

    def finish(self) -> list[Event]:
        """What the end of the text makes known."""
        ...


class OutputParser:
    """Turns a text into events, as it comes.

    However the text is cut into pieces, the events come to the same. What is no call, or breaks
    before its arguments begin, is content to the letter, but for white space beside a mark.

    form: None where no calls are looked for.
    marks: None where the model does not reason.
    reasons: the prompt has opened the reasoning already.
    """

    def __init__(
        self,
        form: CallForm | None = None,
        tools: Tools | None = None,
        marks: Marks | None = None,
        *,
        reasons: bool = False,
    ) -> None:
        self._reader = Reader()
        self._calls = Calls(self._reader, tools or {})
        self._form = form
        self._marks = marks
        self._reading = self._read(reasons)
        next(self._reading)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is looked for: any text is content."""
        return self._form is None and self._marks is None

    def push(self, text: str) -> list[Event]:
        """What ``text`` makes known."""
        self._reader.add(text)
        next(self._reading)
        return self._taken()

    def finish(self) -> list[Event]:
        """What the end of the text makes known."""
        self._reader.ended = True
        next(self._reading, None)
        return self._taken()

    def parse(self, text: str) -> list[Event]:
        """A whole text."""
        return self.push(text) + self.finish()

    def _taken(self) -> list[Event]:
        events = self._reader.events
        self._reader.events = []
        return events

    def _read(self, reasons: bool) -> Reading[None]:
        while not self._reader.text and not self._reader.ended:
            yield
        if self._marks is not None:
            yield from self._reasoning(self._marks, reasons)
        yield from self._content()

    def _reasoning(self, marks: Marks, reasons: bool) -> Reading[None]:
        reader = self._reader
        yield from reader.spaces()
        opened = yield from reader.take(marks.start)
        if not opened:
            reader.retreat()
            if not reasons:
                return
        reader.use()
        yield from reader.drop_spaces()
        stops = (marks.end, *(self._form.opens if self._form else ()))
        while True:
            space, mark = yield from reader.flow(reader.reason, stops)
            if mark in (marks.end, ""):
                reader.pass_mark(mark)
                reader.gap = ""
                yield from reader.drop_spaces()
                return
            # Some models call before they have done reasoning; others write about calls.
            if not (yield from self._call(space, only_known=True)):
                reader.reason(space + mark)
                reader.pass_mark(mark)

    def _content(self) -> Reading[None]:
        reader, form = self._reader, self._form
        opens = form.opens if form is not None else ()
        if form is not None and form.bare:
            yield from reader.spaces()
            if not (yield from self._call("", only_known=True)):
                reader.retreat()
        while opens:
            space, mark = yield from reader.flow(reader.content, opens)
            if not mark:
                reader.content(space)
                return
            if not (yield from self._call(space, only_known=False)):
                reader.content(space + mark)
                reader.pass_mark(mark)
        while True:
            reader.content(reader.text)
            reader.pass_mark(reader.text)
            if reader.ended:
                return
            yield

    def _call(self, space: str, *, only_known: bool) -> Reading[bool]:
        """Read a call, if there is one at this place, and the white space after it.

        space: before it.
        """
        assert self._form is not None
        self._calls.only_known = only_known
        called: bool = yield from self._form.read(self._reader, self._calls)
        if called:
            after = yield from self._reader.drop_spaces()
            self._reader.gap = self._reader.gap or space or after
        else:
            self._reader.retreat()
        return called
