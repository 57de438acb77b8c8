"""What an engine does, event by event: it tells each once, in its thread, to all who watch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

from quire.core.protocol import Decision, Parts, Request, Step
from quire.engine.metrics import RequestMetrics

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_W = TypeVar("_W", bound="Watcher")


class RequestState(NamedTuple):
    """How far a request has come, or how it has ended.

    outputs: tokens of each, of which the last may be about to grow.
    finish_reasons: of its outputs, where they have ended.
    reason: the one with which the request has ended; of one that goes on, nothing.
    error: the name of the error that has ended it.
    """

    request: Request
    metrics: RequestMetrics
    outputs: Sequence[Sequence[int]]
    finish_reasons: Sequence[str | None]
    reason: str | None = None
    error: str | None = None

    @property
    def operation(self) -> str:
        """What it does, by OpenTelemetry's conventions."""
        return "embeddings" if self.request.pooling is not None else self.request.origin.operation

    def served_by(self, model: str) -> str:
        """The model that serves it: an adapter's name, or the model's own."""
        return model if self.request.adapter is None else self.request.adapter.name


class Taken(NamedTuple):
    """A step that is over, and what it gave.

    seconds: from its plan, or the end of the step before, to its end; None: it has failed.
    num_tokens: that outputs have gained. first_tokens: outputs that have their first token.
    to_first: seconds from each request's arrival to its first token.
    between: seconds from token to token of an output; those that come together count once.
    drafts: of each sequence that was drafted for, how many, and how many were right.
    """

    step: Step
    seconds: float | None
    num_tokens: int
    first_tokens: int
    to_first: Sequence[float]
    between: Sequence[float]
    drafts: Sequence[tuple[int, int]]


class Watcher:
    """Hears what an engine does: each overrides the events that it needs.

    An engine waits for its watchers, so they only note what there is.
    """

    def began(self, request: Request) -> None:
        """A request waits to be admitted."""

    def gathered(self) -> None:
        """Some have begun to wait, and none of them has been let in: now is the time to look."""

    def refused(self, decision: Decision, now: float) -> None:
        """A request is refused."""

    def planned(self, step: Step) -> None:
        """A step is about to begin."""

    def decided(self, step: Step) -> None:
        """A step decides something about requests, or the one before it did."""

    def took(self, taken: Taken) -> None:
        """A step is over, and its result is processed."""

    def rested(self) -> None:
        """After a step there is nothing left to do."""

    def part(self, name: str, begin: float, end: float) -> None:
        """A part of a step is over: seconds on the monotonic clock. Parts may hold others."""

    def ended(self, state: RequestState) -> None:
        """A request is over, for whatever reason."""

    def close(self) -> None:
        """Nothing more will be heard."""


Heard = tuple[tuple[Watcher, Callable[_P, None]], ...]
"""Those who hear an event. One that nobody hears costs no call."""


class Events:
    """Who watches an engine, by the events that they hear.

    A watcher that fails hears nothing any more, and harms nobody.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._watch(())

    def add(self, watcher: Watcher) -> None:
        self._watch((*self._watchers, watcher))

    def remove(self, watcher: Watcher) -> None:
        self._watch(tuple(one for one in self._watchers if one is not watcher))

    def find(self, kind: type[_W]) -> _W | None:
        """The first watcher of a kind."""
        return next((one for one in self._watchers if isinstance(one, kind)), None)

    def tell(self, heard: Heard[_P], *facts: _P.args, **named: _P.kwargs) -> None:
        for watcher, hear in heard:
            try:
                hear(*facts, **named)
            except Exception:  # whatever it is: requests are served without
                logger.exception("%s watches no longer", type(watcher).__name__)
                self.remove(watcher)

    def close(self) -> None:
        self.tell(tuple((one, one.close) for one in self._watchers))

    def _watch(self, watchers: tuple[Watcher, ...]) -> None:
        self._watchers = watchers
        self.began: Heard[[Request]] = self._who("began")
        self.gathered: Heard[[]] = self._who("gathered")
        self.refused: Heard[[Decision, float]] = self._who("refused")
        self.planned: Heard[[Step]] = self._who("planned")
        self.decided: Heard[[Step]] = self._who("decided")
        self.took: Heard[[Taken]] = self._who("took")
        self.rested: Heard[[]] = self._who("rested")
        self.ended: Heard[[RequestState]] = self._who("ended")
        self.part: Heard[[str, float, float]] = self._who("part")
        self._parts.listen(self._tell_part if self.part else None)

    def _who(self, event: str) -> Any:
        own = getattr(Watcher, event)
        return tuple(
            (one, getattr(one, event))
            for one in self._watchers
            if getattr(type(one), event) is not own
        )

    def _tell_part(self, name: str, begin: float, end: float) -> None:
        self.tell(self.part, name, begin, end)
