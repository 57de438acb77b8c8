"""The calls in one text, as a dialect's reader finds them."""

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
