"""A conversation's turn as it comes: block by block, and at the end what it took."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from quire.core.protocol import SamplingParams
from quire.engine.outputs import Delta, RequestOutput
from quire.engine.prompts import Prompt
from quire.http.doors.answering import in_their_words
from quire.http.doors.blocks import Block, Blocks, Change
from quire.http.service import Progress, Service
from quire.text.dialect import ContentPiece, Event


class TurnListener(Protocol):
    def hear(self, gained: Delta) -> list[Event]: ...

    def finish_reason(self, reason: str | None) -> str | None: ...


class Speaker(Protocol):
    """A ``PreparedChat``, or what is like one."""

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


@dataclass
class TurnState:
    """All of it so far.

    reason: why it ended, tool_calls included. output: the engine's, once it has.
    """

    blocks: list[Block] = field(default_factory=list)
    reason: str | None = None
    output: RequestOutput | None = None


class TurnStream:
    """One turn, streamed once.

    names: how the door calls fields that may be refused yet.
    singly: tokens that come together are taken one by one: which of them changed what.
    """

    def __init__(
        self,
        speaker: Speaker,
        new_call_id: Callable[[], str],
        names: Mapping[str, str],
        *,
        singly: bool = False,
    ) -> None:
        self._speaker = speaker
        self._singly = singly
        self._blocks = Blocks(new_call_id)
        self._names = names
        self.state = TurnState(self._blocks.closed)

    async def changes(
        self, prefix: str, *, whole: bool = False
    ) -> AsyncGenerator[list[tuple[Delta, list[Change]]], None]:
        """What each delta changes, by the steps in which they come; ``state`` is up to date then.

        whole: there is one delta, which has it all.
        """
        request_id = prefix + uuid.uuid4().hex
        async with aclosing(self._speaker.run(request_id, whole=whole)) as progress:
            with in_their_words(self._names):
                async for deltas in progress:
                    gained = [delta for _, delta in deltas]
                    if self._singly:
                        gained = [one for delta in gained for one in delta.singly()]
                    yield [(delta, self._hear(delta)) for delta in gained]

    async def all(self, prefix: str) -> TurnState:
        async with aclosing(self.changes(prefix, whole=True)) as steps:
            async for _ in steps:
                pass
        return self.state

    def _hear(self, delta: Delta) -> list[Change]:
        listener, final = self._speaker.listener(0), delta.finish_reason is not None
        changes = [*self._blocks.hear(listener.hear(delta), final=final)]
        if final:
            self.state.reason = listener.finish_reason(delta.finish_reason)
            self.state.output = delta.final
        return changes
