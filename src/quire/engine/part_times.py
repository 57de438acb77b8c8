"""Where steps' time has gone of late, for as long as somebody asks."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from quire.core.protocol import Parts

_PARTS = ("plan", "moves", "draft", "forward", "sampling", "update")
_WHOLE = "step"
_WINDOW, _APART, _LINGER = 10.0, 0.25, 10.0  # seconds


@dataclass(frozen=True)
class StepParts:
    """Seconds of a step by what they were spent on, the mean over ``steps`` that were timed.

    moves: of blocks. draft: by a draft model. rest: between the others.
    """

    steps: int
    plan: float
    moves: float
    draft: float
    forward: float
    sampling: float
    update: float
    rest: float


class _PartsMark(NamedTuple):
    time: float
    steps: int
    seconds: tuple[float, ...]  # of the whole, then of the parts


class PartTimes:
    """Listens to ``parts`` from when it is asked until nobody has asked for ten seconds."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._seconds = dict.fromkeys((_WHOLE, *_PARTS), 0.0)
        self._steps = 0
        self._marks: deque[_PartsMark] = deque(maxlen=round(_WINDOW / _APART) + 1)
        self._asked = 0.0

    def of_late(self) -> StepParts | None:
        """Over the latest ten seconds; None if no step has been timed in them."""
        self._asked = now = time.monotonic()
        if "state" not in self._parts.listeners:
            self._marks.clear()
            self._mark(now)
            self._parts.listen("state", self._hear)
        first = next((one for one in self._marks if now - one.time <= _WINDOW), None)
        if first is None or first.steps == self._steps:
            return None
        steps = self._steps - first.steps
        after = zip(first.seconds, self._seconds.values(), strict=True)
        whole, *parts = ((later - before) / steps for before, later in after)
        means = dict(zip(_PARTS, parts, strict=True))
        return StepParts(steps, rest=max(0.0, whole - sum(parts)), **means)

    def _hear(self, name: str, begin: float, end: float) -> None:
        if name in self._seconds:
            self._seconds[name] += end - begin
        if name != _WHOLE:
            return
        self._steps += 1
        if end - self._asked > _LINGER:
            self._parts.ignore("state")
        elif end - self._marks[-1].time >= _APART:
            self._mark(end)

    def _mark(self, now: float) -> None:
        self._marks.append(_PartsMark(now, self._steps, tuple(self._seconds.values())))
