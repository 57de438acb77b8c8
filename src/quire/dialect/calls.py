"""The calls of one text, as a dialect's reader tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.dialect.events import CallArguments, CallBegun, CallEnded
from quire.dialect.reader import Reader

Tools = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each tool's arguments, by the tool's name."""

_LONGEST_NAME = 256  # characters; what is longer was not meant as a name


class Calls:
    """Numbers calls, and turns them into events.

    only_known: a call of anything else than the tools is none. So it is where what looks like a
    call may well be something else.
    """

    def __init__(self, reader: Reader, tools: Tools) -> None:
        self._reader = reader
        self.tools = tools
        self.only_known = False
        self._count = 0

    def accepts(self, name: str) -> bool:
        if self.only_known:
            return name in self.tools
        return 0 < len(name) <= _LONGEST_NAME

    def begin(self, name: str, id: str | None = None) -> None:
        self._reader.use()
        self._reader.events.append(CallBegun(self._count, name, id))
        self._count += 1

    def give(self, text: str) -> None:
        """More of the last call's arguments."""
        if text:
            events, number = self._reader.events, self._count - 1
            last = events[-1] if events else None
            if isinstance(last, CallArguments):
                events[-1] = CallArguments(number, last.text + text)
            else:
                events.append(CallArguments(number, text))

    def end(self) -> None:
        self._reader.use()
        self._reader.events.append(CallEnded(self._count - 1))

    def tell(self, name: str, arguments: str, id: str | None = None) -> None:
        """A call all at once."""
        self.begin(name, id)
        self.give(arguments)
        self.end()
