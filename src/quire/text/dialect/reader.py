"""Reading a text that is still being written: events in, piece by piece.

What reads is a generator: where it needs more text it yields, and goes on when there is some. So
it is written as if the text were all there, and where the text is cut makes no difference. One
parser serves a text that streams and a whole one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar


class ReasoningPiece(NamedTuple):
    """Thought, before the answer."""

    text: str


class ContentPiece(NamedTuple):
    """A part of the answer to the user."""

    text: str


class CallBegun(NamedTuple):
    """A tool is called; its arguments follow. Calls of one text are numbered from 0.

    id: where the dialect has the model name its calls.
    """

    number: int
    name: str
    id: str | None = None


class CallArguments(NamedTuple):
    """More of the JSON object that a call's arguments are."""

    number: int
    text: str


class CallEnded(NamedTuple):
    """A call's arguments are complete."""

    number: int


class CallCut(NamedTuple):
    """No more of a call's arguments comes, and they are not complete.

    text: what the model has written of the call.
    broken: it goes on as no call can; else the text has ended within the call.
    """

    number: int
    text: str
    broken: bool


Event = ReasoningPiece | ContentPiece | CallBegun | CallArguments | CallEnded | CallCut


@dataclass
class Call:
    """A tool's name and its arguments, in JSON.

    cut: what the model has written of a call that is not complete.
    """

    name: str
    arguments: str = ""
    id: str | None = None
    cut: str | None = None


@dataclass
class Reply:
    """A whole text: the sum of its events."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Reply:
        reply = cls()
        for event in events:
            match event:
                case ReasoningPiece(text):
                    reply.reasoning += text
                case ContentPiece(text):
                    reply.content += text
                case CallBegun(_, name, id):
                    reply.calls.append(Call(name, id=id))
                case CallArguments(number, text):
                    reply.calls[number].arguments += text
                case CallCut(number, text):
                    reply.calls[number].cut = text
        return reply


_T = TypeVar("_T")
Reading = Generator[None, None, _T]
"""What a part of the text comes to, once enough of it is there."""

MARK = re.compile(r"<\|[^|<>]+\|>|</?[\w|:-]+>|\[[A-Z_]+\]")
"""What looks like a token of its own."""

_SPACES = re.compile(r"\s*")
_WORD = re.compile(r"[\w.-]*")
_PIECE = 512  # characters that are read at a time: to drop some of a text copies all that is left
_MOST_SPACE = 64  # characters of it that are held back, in case that a mark follows


class TextReader:
    """The text that has come and is not used up, and the events so far.

    at: the position up to which it was looked at; ``retreat`` returns to the last ``use``.
    ended: no more text comes. cut: although it is not complete.
    gap: white space around a call, reported if more text follows.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = self.cut = False
        self.gap = ""
        self.events: list[Event] = []
        self._record: list[str] | None = None

    def add(self, text: str) -> None:
        self.text += text

    def use(self) -> None:
        """Drop what has been looked at."""
        if self._record is not None:
            self._record.append(self.text[: self.at])
        self.text = self.text[self.at :]
        self.at = 0

    def record(self) -> None:
        """Keep what is used from now on, up to ``recorded``."""
        self._record = []

    def recorded(self) -> str:
        kept, self._record = self._record or [], None
        return "".join(kept)

    def retreat(self) -> None:
        self.at = 0

    def reason(self, text: str) -> None:
        if text:
            self.events.append(ReasoningPiece(self.gap + text))
            self.gap = ""

    def content(self, text: str) -> None:
        if text:
            self.events.append(ContentPiece(self.gap + text))
            self.gap = ""

    def pass_mark(self, mark: str) -> None:
        """Skip a mark that ``flow`` has reached; it is used up."""
        self.at = len(mark)
        self.use()

    # -- what all dialects read ----------------------------------------------------------------

    def peek(self) -> Reading[str]:
        """The next character; none at the end."""
        while self.at >= len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.at]

    def take(self, literal: str) -> Reading[bool]:
        """Whether the text goes on with ``literal``; if so, past it."""
        while not self.text.startswith(literal, self.at):
            if self.ended or not literal.startswith(self.text[self.at :]):
                return False
            yield
        self.at += len(literal)
        return True

    def pass_end(self, literal: str) -> Reading[None]:
        """Go past ``literal``, if the text goes on with it; all up to there is used."""
        if (yield from self.take(literal)):
            self.use()
        else:
            self.retreat()

    def spaces(self) -> Reading[None]:
        """Skip white space."""
        while True:
            self.at = _SPACES.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text) or self.ended:
                return
            yield

    def pass_all(self, others: re.Pattern[str]) -> Reading[str]:
        """Skip what matches; the next character, which is none of it, or none at the end."""
        while True:
            self.at = others.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text):
                return self.text[self.at]
            if self.ended:
                return ""
            yield

    def drop_spaces(self) -> Reading[str]:
        """Skip and drop white space; the first character of it."""
        dropped = ""
        while True:
            rest = self.text[self.at :]
            self.text, self.at = rest.lstrip(), 0
            dropped = (dropped + rest[: len(rest) - len(self.text)])[:_MOST_SPACE]
            if self.text or self.ended:
                return dropped
            yield

    def word(self) -> Reading[str]:
        """Letters, digits, _, - and dots: a name, such as functions have."""
        start = self.at
        while True:
            self.at = _WORD.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text) or self.ended:
                return self.text[start : self.at]
            yield

    def until(self, mark: str, most: int) -> Reading[str | None]:
        """The text before ``mark``, which is skipped; None: not within ``most`` characters."""
        start, seen = self.at, self.at
        while (end := self.text.find(mark, seen, start + most)) < 0:
            if self.ended or len(self.text) >= start + most:
                return None
            seen = max(start, len(self.text) - len(mark) + 1)
            yield
        self.at = end + len(mark)
        return self.text[start:end]

    def flow(self, say: Callable[[str], None], marks: Sequence[str]) -> Reading[tuple[str, str]]:
        """Report text up to the first of the marks.

        Returns the white space before the mark, which is not reported, and the mark, which is not
        skipped yet; "" at the end of the text.
        """
        while True:
            end, mark = self._find(marks)
            piece = self.text[:end]
            said = max(len(piece.rstrip()), len(piece) - _MOST_SPACE)
            say(piece[:said])
            if mark or self.ended:
                self.at = end
                self.use()
                return piece[said:], mark
            self.at = said
            self.use()
            yield

    def _find(self, marks: Sequence[str]) -> tuple[int, str]:
        """The position of the first mark, and the mark; or where one may be beginning."""
        text, end = self.text, len(self.text)
        found = ""
        for mark in marks:
            at = text.find(mark[0], 0, end)
            while at >= 0:
                if text.startswith(mark, at):
                    end, found = at, mark
                    break
                if not self.ended and mark.startswith(text[at:]):
                    end, found = at, ""
                    break
                at = text.find(mark[0], at + 1, end)
        return end, found


Tools = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each tool's arguments, by the tool's name."""

_LONGEST_NAME = 256  # characters; what is longer was not meant as a name


class Calls:
    """Numbers calls, and turns them into events.

    only_known: calls of unknown tools are ignored, for dialects in which other text may look like a
        call.
    whole_only: incomplete calls are ignored too. A call is reported at its end; without an end its
        text is left.
    incomplete: the last call has no end: what comes after it belongs to no call.
    count: calls that have begun. wasted: characters that were read as a call and were none.
    """

    def __init__(self, reader: TextReader, tools: Tools) -> None:
        self._reader = reader
        self.tools = tools
        self.only_known = False
        self.whole_only = False
        self.incomplete = False
        self.count = self.wasted = 0
        self._held: list[Event] = []

    def accepts(self, name: str) -> bool:
        if self.only_known:
            return name in self.tools
        return 0 < len(name) <= _LONGEST_NAME

    def begin(self, name: str, id: str | None = None) -> None:
        self.incomplete = False
        self._reader.record()
        self._reader.use()
        self._events.append(CallBegun(self.count, name, id))
        self.count += 1

    def give(self, text: str) -> None:
        """Report more of the last call's arguments."""
        if text:
            events, number = self._events, self.count - 1
            last = events[-1] if events else None
            if isinstance(last, CallArguments):
                events[-1] = CallArguments(number, last.text + text)
            else:
                events.append(CallArguments(number, text))

    def end(self) -> None:
        self._reader.use()
        self._reader.recorded()
        self._events.append(CallEnded(self.count - 1))
        self._reader.events += self._held
        self._held = []

    def cut(self, *, broken: bool) -> None:
        """Report that the last call is not complete. See ``CallCut``."""
        reader = self._reader
        self.incomplete = True
        if not broken:  # the text is over: its rest is the call's
            reader.at = len(reader.text)
        reader.use()
        text = reader.recorded()
        if self.whole_only:
            reader.text = text + reader.text
            self.count -= 1
            self._held = []
        else:
            reader.events.append(CallCut(self.count - 1, text, broken))

    def tell(self, name: str, arguments: str, id: str | None = None) -> None:
        """Report a whole call."""
        self.begin(name, id)
        self.give(arguments)
        self.end()

    @property
    def _events(self) -> list[Event]:
        return self._held if self.whole_only else self._reader.events


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

    @property
    def tokens(self) -> tuple[str, ...]:
        """The marks, and what may be tokens in them."""
        return self.start, self.end, *MARK.findall(self.start + self.end)

    def state_after(self, opening: str, said: str = "") -> ParserState:
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
        for start in range(0, len(text), _PIECE):
            self._reader.add(text[start : start + _PIECE])
            next(self._reading)
        return self._taken()

    def finish(self, *, cut: bool = False) -> list[Event]:
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
    state: the state after the prompt's part.
    """

    def __init__(
        self,
        form: CallForm | None = None,
        tools: Tools | None = None,
        marks: Marks | None = None,
        state: ParserState = ParserState(),  # noqa: B008  # frozen
    ) -> None:
        self.is_plain = form is None and (marks is None or not state.may_reason)
        super().__init__(tools, _OutputText(form, marks, state).read)


@dataclass
class _OutputText:
    """Reasoning, perhaps, and then content amid which are calls."""

    form: CallForm | None
    marks: Marks | None
    state: ParserState

    def read(self, reader: TextReader, calls: Calls) -> Reading[None]:
        while not reader.text and not reader.ended:
            yield
        if self.marks is not None and self.state.may_reason:
            yield from self._reasoning(reader, calls, self.marks)
        yield from self._content(reader, calls)

    def _reasoning(self, reader: TextReader, calls: Calls, marks: Marks) -> Reading[None]:
        if not self.state.amid:
            yield from reader.spaces()
            opened = yield from reader.take(marks.start)
            if not opened:
                reader.retreat()
                if not self.state.reasons:
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
