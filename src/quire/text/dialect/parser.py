"""One parser for a text that streams and for a whole one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from quire.text.dialect.calls import Calls, Tools
from quire.text.dialect.events import Event
from quire.text.dialect.reader import Reading, TextReader

_PIECE = 512  # characters that are read at a time: to drop some of a text copies all that is left

ReadCall = Callable[[TextReader, Calls], Reading[bool]]


class ParserState(NamedTuple):
    """The state of a text that is still growing.

    reasons: reasoning has been opened.
    amid: some of the reasoning, or of the content, is there: white space is kept as written, and
        content opens no reasoning any more.
    """

    reasons: bool = False
    amid: bool = False

    @property
    def may_reason(self) -> bool:
        return self.reasons or not self.amid


@dataclass(frozen=True)
class Marks:
    """The marks around a model's reasoning.

    implied: a text begins with reasoning, whether it is marked or not.
    """

    start: str
    end: str
    implied: bool = False

    def standing(self, opening: str, said: str = "") -> ParserState:
        """The state of an answer that a prompt has begun.

        opening: the chat template's part of it.
        said: its text so far; if it begins with reasoning, it shows that.
        """
        start, end = opening.rfind(self.start), opening.rfind(self.end)
        opened, text = start > end, said.strip()
        if not text:
            return ParserState(opened or (self.implied and end < 0))
        if text.startswith(self.start):
            opened, text = True, text[len(self.start) :]
        if self.end in text:
            opened = False
        return ParserState(opened, amid=not opened or bool(text))


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


class EventParser(Protocol):
    """Turns one text into events, as it comes."""

    @property
    def is_plain(self) -> bool:
        """Whether all text is content, with nothing to look for."""
        ...

    def push(self, text: str) -> list[Event]:
        """The events that ``text`` completes."""
        ...

    def finish(self, *, cut: bool = False) -> list[Event]:
        """The events that the end of the text completes. cut: the model would have continued."""
        ...


class TextParser:
    """A ``EventParser`` that is a reading of the text: however that is cut, it reads the same."""

    is_plain = False

    def __init__(
        self, tools: Tools | None, read: Callable[[TextReader, Calls], Reading[None]]
    ) -> None:
        self._reader = TextReader()
        self._reading = read(self._reader, Calls(self._reader, tools or {}))
        next(self._reading)

    def push(self, text: str) -> list[Event]:
        """See ``EventParser.push``."""
        for start in range(0, len(text), _PIECE):
            self._reader.add(text[start : start + _PIECE])
            next(self._reading)
        return self._taken()

    def finish(self, *, cut: bool = False) -> list[Event]:
        """See ``EventParser.finish``."""
        self._reader.ended, self._reader.cut = True, cut
        next(self._reading, None)
        return self._taken()

    def parse(self, text: str) -> list[Event]:
        """A whole text."""
        return self.push(text) + self.finish()

    def _taken(self) -> list[Event]:
        events = self._reader.events
        self._reader.events = []
        return events


class OutputParser(TextParser):
    """Turns a text into events, as it comes.

    However the text is cut into pieces, the events add up to the same. Text that is not a call, or
    that breaks before its arguments begin, is content to the letter, except for white space beside
    a mark.

    form: None: calls are not looked for.
    marks: None: the model does not reason.
    standing: the state after the prompt's part.
    """

    def __init__(
        self,
        form: CallForm | None = None,
        tools: Tools | None = None,
        marks: Marks | None = None,
        standing: ParserState = ParserState(),  # noqa: B008  # frozen
    ) -> None:
        self.is_plain = form is None and (marks is None or not standing.may_reason)
        super().__init__(tools, _Text(form, marks, standing).read)


@dataclass
class _Text:
    """Reasoning, perhaps, and then content amid which are calls."""

    form: CallForm | None
    marks: Marks | None
    standing: ParserState

    def read(self, reader: TextReader, calls: Calls) -> Reading[None]:
        while not reader.text and not reader.ended:
            yield
        if self.marks is not None and self.standing.may_reason:
            yield from self._reasoning(reader, calls, self.marks)
        yield from self._content(reader, calls)

    def _reasoning(self, reader: TextReader, calls: Calls, marks: Marks) -> Reading[None]:
        if not self.standing.amid:
            yield from reader.spaces()
            opened = yield from reader.take(marks.start)
            if not opened:
                reader.retreat()
                if not self.standing.reasons:
                    return
            reader.use()
            yield from reader.drop_spaces()
        stops = (marks.end, *(self.form.opens if self.form else ()))
        while True:
            space, mark = yield from reader.flow(reader.reason, stops)
            if mark in (marks.end, ""):
                reader.pass_mark(mark)
                reader.gap = ""
                yield from reader.drop_spaces()
                return
            # Some models call before they have done reasoning; others write about calls.
            if not (yield from self._call(reader, calls, space, only_known=True, in_thought=True)):
                reader.reason(space + mark)
                reader.pass_mark(mark)

    def _content(self, reader: TextReader, calls: Calls) -> Reading[None]:
        form = self.form
        opens = form.opens if form is not None else ()
        if form is not None and form.bare:
            yield from reader.spaces()
            if not (yield from self._call(reader, calls, "", only_known=True)):
                reader.retreat()
        while opens:
            space, mark = yield from reader.flow(reader.content, opens)
            if not mark:
                reader.content(space)
                return
            if not (yield from self._call(reader, calls, space, only_known=False)):
                reader.content(space + mark)
                reader.pass_mark(mark)
        while True:
            reader.content(reader.text)
            reader.pass_mark(reader.text)
            if reader.ended:
                return
            yield

    def _call(
        self,
        reader: TextReader,
        calls: Calls,
        space: str,
        *,
        only_known: bool,
        in_thought: bool = False,
    ) -> Reading[bool]:
        """Read a call, if there is one here, and the white space after it.

        space: before it. in_thought: an incomplete one is part of the reasoning, and not made.
        """
        assert self.form is not None
        calls.only_known, calls.whole_only = only_known, in_thought
        count = calls.count
        called: bool = yield from self.form.read(reader, calls)
        called = called and (calls.count > count or not in_thought)
        if called:
            after = yield from reader.drop_spaces()
            reader.gap = reader.gap or space or after
        else:
            reader.retreat()
        return called
