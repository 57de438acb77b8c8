"""Where an event loop leaves what the engine gave, for the task that waits for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from quire.core.errors import EngineError
from quire.engine.outputs import Delta, joined

_SCORED = 8  # deltas without log-probabilities that are written in the time of one with some


@dataclass(slots=True)
class _Held:
    """Of one output: what has come since something of it was given."""

    deltas: list[Delta] = field(default_factory=list)
    num_tokens: int = 0


class OutputCollector:
    """The deltas of one or several requests. The task is woken once for all that came together.

    interval: of each output so many tokens are gathered to one delta, but its first token and its
        end are given at once; None: nothing is given before the end.
    """

    def __init__(self, interval: int | None = 1) -> None:
        self._interval = interval
        self._held: dict[tuple[str, int], _Held] = {}
        self._deltas: list[Delta] = []
        self._failure: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None  # an Event would cost twice as much

    def put(self, delta: Delta) -> bool:
        """Whether there is something to take now."""
        if self._interval == 1:
            self._deltas.append(delta)
        else:
            self._gather(delta)
        return bool(self._deltas)

    @property
    def weight(self) -> int:
        """How much there is to write, in deltas without log-probabilities."""
        return sum(1 if delta.logprobs is None else _SCORED for delta in self._deltas)

    def wake(self) -> None:
        """Have the task take what there is, if it waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, failure: EngineError) -> None:
        """Nothing more will come, because of ``failure``."""
        self._failure = failure
        self.wake()

    async def take(self) -> list[Delta]:
        """All that has come since the last time; waits for it. Raises the failure after that."""
        if not self._deltas and self._failure is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        deltas, self._deltas = self._deltas, []
        if not deltas and self._failure is not None:
            raise self._failure
        return deltas

    def _gather(self, delta: Delta) -> None:
        output = delta.request_id, delta.index
        held = self._held.setdefault(output, _Held())
        held.deltas.append(delta)
        held.num_tokens += len(delta.token_ids)
        if delta.final is not None:  # which ends all of the request's outputs
            for other in [one for one in self._held if one[0] == delta.request_id]:
                if other != output:
                    self._give(other)
        if delta.finish_reason is not None or (
            self._interval is not None and (delta.first or held.num_tokens >= self._interval)
        ):
            self._give(output)

    def _give(self, output: tuple[str, int]) -> None:
        self._deltas.append(joined(self._held.pop(output).deltas))
