"""Reading a text that is still being written.

What reads is a generator: where it needs more text it yields, and goes on when there is some. So
it is written as if the text were all there, and where the text is cut makes no difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from quire.text.dialect.events import ContentPiece, Event, ReasoningPiece

_T = TypeVar("_T")
Reading = Generator[None, None, _T]
"""What a part of the text comes to, once enough of it is there."""

_SPACES = re.compile(r"\s*")
_WORD = re.compile(r"[\w.-]*")
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

    def spaces(self) -> Reading[None]:
        """Skip white space."""
        while True:
            self.at = _SPACES.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text) or self.ended:
                return
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
