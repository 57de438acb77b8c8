"""What doors have in common: a turn as it comes, block by block, in the words of any API."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import Any, NamedTuple, Protocol

from quire.engine.input_processor import Prompt
from quire.engine.outputs import Delta, RequestOutput
from quire.http.answers.rendering import Answer
from quire.http.answers.streaming import Events
from quire.http.body_fields import in_callers_words
from quire.http.errors import BrokenCallError
from quire.http.service import Progress, Service
from quire.text.chat_template import Message
from quire.text.dialect import (
    CallArguments,
    CallBegun,
    CallCut,
    CallEnded,
    ContentPiece,
    Event,
    ReasoningPiece,
)
from quire.text.params import SamplingParams


async def outputs(progress: Progress, names: Mapping[str, str]) -> list[RequestOutput]:
    """The finished requests, in the order of their prompts."""
    finished: dict[int, RequestOutput] = {}
    async with aclosing(progress):
        with in_callers_words(names, in_text=True):
            async for deltas in progress:
                finished.update({number: delta.final for number, delta in deltas if delta.final})
    return [finished[number] for number in sorted(finished)]


async def pieces(
    progress: Progress, worded: Callable[[int, Delta], list[Answer]], names: Mapping[str, str]
) -> Events:
    """What ``worded`` makes of each delta of a prompt, as it comes."""
    async with aclosing(progress):
        with in_callers_words(names, in_text=True):
            async for deltas in progress:
                values = [value for number, delta in deltas for value in worded(number, delta)]
                if values:
                    yield values


def going_on(messages: Sequence[Message]) -> dict[str, bool]:
    """How a conversation is rendered whose last words are the assistant's: to be gone on with."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or not last["content"] or "tool_calls" in last:
        return {}
    return {"continue_final_message": True, "add_generation_prompt": False}


def now() -> str:
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


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


class TurnListener(Protocol):
    def hear(self, gained: Delta) -> list[Event]: ...

    def finish_reason(self, reason: str | None) -> str | None: ...


class Speaker(Protocol):
    """What runs and speaks: a ``PreparedChat``, or a ``RawText``."""

    def run(self, request_id: str, *, whole: bool) -> Progress: ...

    def listener(self, index: int) -> TurnListener: ...


class RawText:
    """A prompt without a conversation around it: all that comes is content."""

    def __init__(self, service: Service, prompt: Prompt, params: SamplingParams) -> None:
        self._service = service
        self._prompt = prompt
        self._params = params

    def run(self, request_id: str, *, whole: bool) -> Progress:
        return self._service.run(request_id, [self._prompt], self._params, {}, whole=whole)

    def listener(self, index: int) -> TurnListener:
        return self

    def hear(self, gained: Delta) -> list[Event]:
        return [ContentPiece(gained.text)] if gained.text else []

    def finish_reason(self, reason: str | None) -> str | None:
        return reason


class TurnStream:
    """One turn, streamed once: a row of blocks, each of which is closed before the next is opened.

    blocks: those that are closed. reason: why it has ended, tool_calls included. output: the
    engine's, once it has ended.
    """

    def __init__(
        self,
        speaker: Speaker,
        prefix: str,
        new_call_id: Callable[[], str],
        names: Mapping[str, str],
        *,
        singly: bool = False,
    ) -> None:
        """prefix: of the request's id.

        new_call_id: makes an id for a call whose dialect has none.
        names: how the door calls fields that may be refused yet.
        singly: tokens that come together are taken one by one: which of them changed what.
        """
        self.blocks: list[Block] = []
        self.reason: str | None = None
        self.output: RequestOutput | None = None
        self._open: Block | None = None
        self._speaker, self._prefix, self._names = speaker, prefix, names
        self._new_call_id, self._singly = new_call_id, singly

    @property
    def result(self) -> RequestOutput:
        """``output``, of a turn that has ended."""
        assert self.output is not None
        return self.output

    async def events(
        self,
        worded: Callable[[Delta, Sequence[Change]], Iterable[Answer]],
        ending: Callable[[], Iterable[Answer]],
        opening: Callable[[Delta], Sequence[Answer]] = lambda _: (),
        *,
        whole: bool = False,
    ) -> Events:
        """What a door makes of the deltas and of what they change, by the steps in which they come.

        opening: makes of the first delta what goes before it. ending: what goes behind the last.
        whole: there is one delta, which has it all.
        """
        request_id, opened = self._prefix + uuid.uuid4().hex, False
        async with aclosing(self._speaker.run(request_id, whole=whole)) as progress:
            with in_callers_words(self._names, in_text=True):
                async for deltas in progress:
                    gained = [delta for _, delta in deltas]
                    if self._singly:
                        gained = [one for delta in gained for one in delta.singly()]
                    heard = [(delta, [*self._hear(delta)]) for delta in gained]
                    events = [] if opened else [*opening(gained[0])]
                    opened = True
                    for delta, changes in heard:
                        events += worded(delta, changes)
                    if self.output is not None:
                        events += ending()
                    if events:
                        yield events

    async def all(self) -> None:
        """Wait until it has ended."""
        async with aclosing(self.events(lambda *_: (), tuple, whole=True)) as nothing:
            async for _ in nothing:
                pass

    def _hear(self, delta: Delta) -> Iterator[Change]:
        listener = self._speaker.listener(0)
        for event in listener.hear(delta):
            match event:
                case ReasoningPiece(text):
                    yield from self._grow(Kind.REASONING, text)
                case ContentPiece(text):
                    yield from self._grow(Kind.TEXT, text)
                case CallBegun(number, name, call_id):
                    yield from self._begin(Kind.CALL, name, call_id or self._new_call_id(), number)
                case CallArguments(_, text):
                    yield from self._grow(Kind.CALL, text)
                case CallCut(_, text):
                    assert self._open is not None
                    self._open.cut = text
                    yield from self._close()
                case CallEnded():
                    yield from self._close()
        if delta.finish_reason is not None:
            yield from self._close()
            self.reason = listener.finish_reason(delta.finish_reason)
            self.output = delta.final

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
        self._open = Block(len(self.blocks), kind, "", name, call_id, number)
        yield BlockOpened(self._open)

    def _close(self) -> Iterator[Change]:
        if self._open is not None:
            block, self._open = self._open, None
            self.blocks.append(block)
            yield BlockClosed(block)
