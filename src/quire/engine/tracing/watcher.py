"""Who is told, in the engine's thread, what becomes of requests and what steps are planned."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire.core.metrics import RequestMetrics
from quire.core.protocol import Request, Step

logger = logging.getLogger(__name__)


class Standing(NamedTuple):
    """How far a request has come, or how it has ended.

    outputs: tokens of each, of which the last may be about to grow.
    finish_reasons: of its outputs, where they have ended.
    error: the name of the error that has ended it.
    """

    metrics: RequestMetrics
    outputs: Sequence[Sequence[int]]
    finish_reasons: Sequence[str | None]
    error: str | None = None


class Watcher:
    """Does nothing with what it is told. Others override what they need.

    They only note what there is: an engine waits for them.
    """

    def began(self, request: Request) -> None:
        """It stands in line."""

    def planned(self, step: Step) -> None:
        """It is about to begin."""

    def took(self, step: Step, *, more: bool) -> None:
        """It is over, and what it gave is taken in. ``more``: there is something left to do."""

    def ended(self, request: Request, standing: Standing) -> None:
        """It is over, for whatever reason."""

    def close(self) -> None:
        """Nothing more will be told."""


class Watchers(Watcher):
    """Tells all of them. One that fails is told nothing any more, and harms nobody.

    of_steps: whether one of them looks at steps.
    """

    def __init__(self, watchers: Sequence[Watcher] = ()) -> None:
        self._all: list[Watcher] = []
        self.of_steps = False
        for watcher in watchers:
            self.add(watcher)

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, watcher: Watcher) -> None:
        self._all.append(watcher)
        self._look_for_steps()

    def remove(self, watcher: Watcher) -> None:
        if watcher in self._all:
            self._all.remove(watcher)
            self._look_for_steps()

    def _look_for_steps(self) -> None:
        own = Watcher.planned, Watcher.took
        self.of_steps = any((type(one).planned, type(one).took) != own for one in self._all)

    def began(self, request: Request) -> None:
        self._tell(lambda watcher: watcher.began(request))

    def planned(self, step: Step) -> None:
        self._tell(lambda watcher: watcher.planned(step))

    def took(self, step: Step, *, more: bool) -> None:
        self._tell(lambda watcher: watcher.took(step, more=more))

    def ended(self, request: Request, standing: Standing) -> None:
        self._tell(lambda watcher: watcher.ended(request, standing))

    def close(self) -> None:
        self._tell(lambda watcher: watcher.close())

    def _tell(self, tell: Callable[[Watcher], None]) -> None:
        for watcher in [*self._all]:
            try:
                tell(watcher)
            except Exception:  # whatever it is: requests are served without
                logger.exception("%s watches no longer", type(watcher).__name__)
                self.remove(watcher)
