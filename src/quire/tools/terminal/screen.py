"""Where a chat is typed and shown: what both kinds of screen can do, and the plain one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from quire.tools.terminal.models import Piece

QUOTES = '"""'

# All but tabs and line ends.
_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])


def harmless(text: str) -> str:
    """Without what terminals are told by characters: no model's text, and nothing that a server
    says, moves the cursor, names the window or fills the clipboard."""
    return text.translate(_CONTROLS)


class Shown(Protocol):
    """An answer as it is shown."""

    def add(self, piece: Piece) -> None: ...


class Screen(Protocol):
    """Reads messages, shows answers. A note is for the person, and no part of the answers."""

    keys: Mapping[str, str]  # what keys do beside those that type, for /help

    def read(self) -> str:
        """The next message. EOFError at the end, KeyboardInterrupt where it was given up."""
        ...

    def answering(self) -> AbstractContextManager[Shown]:
        """Shows what is added to it; left by an error or an interrupt, what has come stays."""
        ...

    def note(self, text: str) -> None: ...

    def error(self, text: str) -> None: ...


class PlainScreen:
    """A ``Screen``: output to pipes and files: only answers go to standard output, as they come."""

    keys: Mapping[str, str] = {QUOTES: "before and after a message of several lines"}

    def __init__(self, output: TextIO | None = None, notes: TextIO | None = None) -> None:
        self._output = sys.stdout if output is None else output
        self._notes = sys.stderr if notes is None else notes

    def read(self) -> str:
        return whole_message(self._line)

    @contextmanager
    def answering(self) -> Iterator[Shown]:
        try:
            yield self
        except KeyboardInterrupt:
            self._end_line()
            raise
        self._end_line()

    def add(self, piece: Piece) -> None:
        text = harmless(piece.text) if self._output.isatty() else piece.text
        print(text, end="", file=self._output, flush=True)

    def note(self, text: str) -> None:
        print(harmless(text), file=self._notes, flush=True)

    def error(self, text: str) -> None:
        print(f"quire: error: {harmless(text)}", file=self._notes, flush=True)

    def _end_line(self) -> None:
        print(file=self._output, flush=True)

    def _line(self) -> str:
        if sys.stdin.isatty():
            print("> ", end="", file=self._notes, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")


def whole_message(line: Callable[[], str]) -> str:
    """A line or, from three quotes on, the lines up to the next three."""
    text = line()
    while is_open(text):
        try:
            text += "\n" + line()
        except EOFError:
            break
    return unquoted(text)


def is_open(text: str) -> bool:
    """Whether more lines belong to it."""
    start = text.lstrip()
    return start.startswith(QUOTES) and QUOTES not in start[len(QUOTES) :]


def unquoted(text: str) -> str:
    start = text.lstrip()
    if not start.startswith(QUOTES):
        return text
    return start.removeprefix(QUOTES).rstrip().removesuffix(QUOTES).strip("\n")
