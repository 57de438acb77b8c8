"""A model's turn as a row of blocks, one after the other: reasoning, text, calls of tools."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from quire.http.errors import BrokenCallError
from quire.text.dialect import (
    CallArguments,
    CallBegun,
    CallCut,
    CallEnded,
    ContentPiece,
    Event,
    ReasoningPiece,
)


class Kind(Enum):
    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


@dataclass
class Block:
    """text: of a call the JSON of its arguments. name, call_id, number: of a call, among calls.

    cut: what the model has written of a call that is not complete.
    """

    index: int
    kind: Kind
    text: str = ""
    name: str = ""
    call_id: str = ""
    number: int = 0
    cut: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Of a complete call, as an object. BrokenCallError for a number that no float holds."""
        value: dict[str, Any] = json.loads(self.text, parse_float=_finite)
        return value


def _finite(number: str) -> float:
    if math.isinf(read := float(number)):
        raise BrokenCallError(
            f"the model has called a tool with a number that is too large: {number}"
        )
    return read


class BlockOpened(NamedTuple):
    block: Block


class BlockGrown(NamedTuple):
    block: Block
    text: str


class BlockClosed(NamedTuple):
    block: Block


Change = BlockOpened | BlockGrown | BlockClosed


class Blocks:
    """Puts a dialect's events in a row: a block is closed before the next one is opened.

    call_id: makes an id for a call whose dialect has none.
    """

    def __init__(self, call_id: Callable[[], str]) -> None:
        self.closed: list[Block] = []
        self._open: Block | None = None
        self._call_id = call_id

    def hear(self, events: Iterable[Event], *, final: bool) -> Iterator[Change]:
        for event in events:
            match event:
                case ReasoningPiece(text):
                    yield from self._grow(Kind.REASONING, text)
                case ContentPiece(text):
                    yield from self._grow(Kind.TEXT, text)
                case CallBegun(number, name, call_id):
                    yield from self._begin(Kind.CALL, name, call_id or self._call_id(), number)
                case CallArguments(_, text):
                    yield from self._grow(Kind.CALL, text)
                case CallCut(_, text):
                    assert self._open is not None
                    self._open.cut = text
                    yield from self._close()
                case CallEnded():
                    yield from self._close()
        if final:
            yield from self._close()

    def _grow(self, kind: Kind, text: str) -> Iterator[Change]:
        if self._open is None or self._open.kind is not kind:
            yield from self._begin(kind)
        assert self._open is not None
        self._open.text += text
        yield BlockGrown(self._open, text)

    def _begin(
        self, kind: Kind, name: str = "", call_id: str = "", number: int = 0
    ) -> Iterator[Change]:
        yield from self._close()
        self._open = Block(len(self.closed), kind, "", name, call_id, number)
        yield BlockOpened(self._open)

    def _close(self) -> Iterator[Change]:
        if self._open is not None:
            block, self._open = self._open, None
            self.closed.append(block)
            yield BlockClosed(block)
