"""The calls of one text, as a dialect's reader tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.text.dialect.events import CallArguments, CallBegun, CallCut, CallEnded, Event
from quire.text.dialect.reader import TextReader

Tools = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each tool's arguments, by the tool's name."""

_LONGEST_NAME = 256  # characters; what is longer was not meant as a name


class Calls:
    """Numbers calls, and turns them into events.

    only_known: a call of anything else than the tools is none. So it is where what looks like a
    call may well be something else.
    whole_only: so is one that is not complete. It is told at its end, and its text is left if it
    has none.
    incomplete: the last one has no end: what comes after it is no part of a call.
    count: of those that have begun.
    """

    def __init__(self, reader: TextReader, tools: Tools) -> None:
        self._reader = reader
        self.tools = tools
        self.only_known = False
        self.whole_only = False
        self.incomplete = False
        self.count = 0
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
        """More of the last call's arguments."""
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
        """The last call is not complete. See ``CallCut``."""
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
        """A call all at once."""
        self.begin(name, id)
        self.give(arguments)
        self.end()

    @property
    def _events(self) -> list[Event]:
        return self._held if self.whole_only else self._reader.events
