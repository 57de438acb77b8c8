"""What an engine has done and decided: counters, rates of the last seconds, latencies, parts."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from quire.core.memory import Usage
from quire.core.protocol import Decision, Step, Verdict
from quire.core.scheduling import Scheduler
from quire.engine.events import Events, Taken, Watcher

logger = logging.getLogger(__name__)
_WINDOW, _APART = 10.0, 0.25  # seconds
_HISTORY, _MOMENT = 600.0, 3.0  # seconds
_LATENCIES = 4096
_POSITIONS = 16  # of drafts; more are counted where there are more
_DECISIONS = 1000
_PARTS = ("plan", "moves", "draft", "forward", "sampling", "update")
_WHOLE = "step"
_LINGER = 10.0  # seconds for which parts are timed after somebody has asked

_M = TypeVar("_M")


class _Mark(NamedTuple):
    """Counters at a moment."""

    time: float
    steps: float
    busy_seconds: float
    computed: float
    generated: float
    begun: float
    rows: float
    drafted: float
    accepted: float


@dataclass(frozen=True)
class Rates:
    """Over the latest ``seconds``, 0 if there were no steps in them.

    prompt_tokens_per_second: computed of prompts, and again after a preemption.
    sequences: in a step. tokens_each: that a sequence has gained in a step. step_seconds: from its
    plan to its outcome. busy: share of the time that was spent in steps.
    """

    seconds: float
    prompt_tokens_per_second: float
    generated_tokens_per_second: float
    steps_per_second: float
    sequences: float
    tokens_each: float
    step_tokens: float
    step_seconds: float | None
    busy: float


@dataclass(frozen=True)
class Percentiles:
    """In seconds, of the latest ``count``; null if there are none."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(eq=False)
class EngineStats(Watcher):
    """Counters of work, and the KV pool's slots integrated over the time they were measured."""

    num_steps: int = 0
    num_tokens: int = 0  # computed, prompt and output
    busy_seconds: float = 0.0
    num_failed_swaps: int = 0  # blocks that did not get to the host, or not back as they were
    num_faults: int = 0  # that memory's audits have found, and put right
    num_drafts: int = 0  # times that a sequence was drafted for in a step
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0  # of them, that were what the model says
    accepted_by_position: list[int] = field(default_factory=lambda: [0] * _POSITIONS)
    slot_seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(Usage._fields, 0.0)
    )
    _generated: int = 0  # tokens of outputs
    _begun: int = 0  # outputs that have a token
    _rows: int = 0  # chunks
    _due: float = -math.inf  # when there is to be another mark
    _marks: deque[_Mark] = field(
        default_factory=lambda: deque(maxlen=math.ceil(_WINDOW / _APART) + 1)
    )
    _to_first: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))
    _between: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))

    def took(self, taken: Taken) -> None:
        step, seconds = taken.step, taken.seconds
        if seconds is None:
            return
        if step.now >= self._due:
            self._due = step.now + _APART
            self._marks.append(self._mark(step.now))
        self.num_steps += 1
        self.num_tokens += step.num_tokens
        self.busy_seconds += seconds
        for kind, slots in zip(Usage._fields, step.usage, strict=True):
            self.slot_seconds[kind] += slots * seconds
        self._rows += len(step.chunks)
        self._generated += taken.num_tokens
        self._begun += taken.first_tokens
        self._to_first += taken.to_first
        self._between += taken.between
        by_position = self.accepted_by_position
        for drafted, accepted in taken.drafts:
            self.num_drafts += 1
            self.num_draft_tokens += drafted
            self.num_accepted_tokens += accepted
            by_position += [0] * (accepted - len(by_position))
            for position in range(accepted):
                by_position[position] += 1

    @property
    def kv_efficiency(self) -> float | None:
        """Share of the KV memory taken from the pool that held tokens' states, over time.

        The measure of the PagedAttention paper's figure 2: what is reserved for later or lost to
        fragmentation counts as waste.
        """
        slots = self.slot_seconds
        taken = slots["used"] + slots["reserved"] + slots["internal"] + slots["external"]
        return slots["used"] / taken if taken else None

    def _mark(self, now: float) -> _Mark:
        return _Mark(
            now, self.num_steps, self.busy_seconds, self.num_tokens, self._generated,
            self._begun, self._rows, self.num_draft_tokens, self.num_accepted_tokens,
        )  # fmt: skip

    def rates(self, now: float) -> Rates:
        last = self._mark(now)
        marks = (mark for mark in self._marks if now - mark.time <= _WINDOW)
        first = next(marks, last)
        seconds, steps = now - first.time, last.steps - first.steps
        if seconds <= 0 or not steps:
            return Rates(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None, 0.0)
        gone = _Mark(*(b - a for a, b in zip(first, last, strict=True)))
        # A row of decoding gives a token; one with drafts more, and takes a row for each draft.
        decoding = gone.generated - gone.begun - gone.accepted + gone.drafted
        return Rates(
            seconds,
            max(0, gone.computed - decoding) / seconds,
            gone.generated / seconds,
            steps / seconds,
            gone.rows / steps,
            gone.generated / gone.rows if gone.rows else 0.0,
            gone.computed / steps,
            gone.busy_seconds / steps,
            min(1.0, gone.busy_seconds / seconds),
        )

    @property
    def first_token(self) -> Percentiles:
        """From a request's arrival to its first token."""
        return _percentiles(self._to_first)

    @property
    def between_tokens(self) -> Percentiles:
        """Between two tokens of an output; those that come together count once."""
        return _percentiles(self._between)


class History(Watcher, Generic[_M]):
    """Notes a moment every three seconds, while there are steps: an idle engine is left alone.

    moments: of the last ten minutes, oldest first. To be touched in the engine's thread.
    """

    def __init__(self, note: Callable[[], _M], clock: Callable[[], float]) -> None:
        self._note, self._clock = note, clock
        self.moments: deque[_M] = deque(maxlen=round(_HISTORY / _MOMENT))
        self._due = 0.0

    def took(self, taken: Taken) -> None:
        now = self._clock()
        if now >= self._due:
            self._due = now + _MOMENT
            self.moments.append(self._note())


class Noted(NamedTuple):
    """A decision with its number among all that were noted, from 1."""

    number: int
    time: float
    decision: Decision


class DecisionLog(Watcher):
    """The latest thousand decisions about requests, oldest first, each with a number.

    Of one request that waits, step after step, only the newest figures are kept, under a new
    number.

    waiting: by request, what the latest step has decided about those that wait.
    """

    def __init__(self) -> None:
        self._noted: deque[Noted] = deque(maxlen=_DECISIONS)
        self.number = 0  # of the latest
        self.waiting: dict[str, Decision] = {}

    def since(self, number: int) -> list[Noted]:
        """The decisions after a number that are still kept."""
        return [noted for noted in self._noted if noted.number > number]

    def decided(self, step: Step) -> None:
        self.waiting = {d.request_id: d for d in step.decisions if d.what is Verdict.WAIT}
        while self.waiting and self._noted:
            last = self._noted[-1].decision
            if last.what is not Verdict.WAIT or last.request_id not in self.waiting:
                break
            self._noted.pop()
        for decision in step.decisions:
            self._note(decision, step.now)

    def refused(self, decision: Decision, now: float) -> None:
        self._note(decision, now)

    def _note(self, decision: Decision, now: float) -> None:
        self.number += 1
        self._noted.append(Noted(self.number, now, decision))


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


class _PartMark(NamedTuple):
    time: float
    steps: int
    seconds: tuple[float, ...]  # of the whole, then of the parts


class PartTimes(Watcher):
    """Where steps' time goes: it watches from when it is asked until nobody has asked for 10 s."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._seconds = dict.fromkeys((_WHOLE, *_PARTS), 0.0)
        self._steps = 0
        self._marks: deque[_PartMark] = deque(maxlen=round(_WINDOW / _APART) + 1)
        self._asked = 0.0

    def of_late(self) -> StepParts | None:
        """The mean over the latest ten seconds; None if no step was timed in them."""
        self._asked = now = time.monotonic()
        if self._events.find(PartTimes) is None:
            self._marks.clear()
            self._mark(now)
            self._events.add(self)
        first = next((one for one in self._marks if now - one.time <= _WINDOW), None)
        if first is None or first.steps == self._steps:
            return None
        steps = self._steps - first.steps
        after = zip(first.seconds, self._seconds.values(), strict=True)
        whole, *parts = ((later - before) / steps for before, later in after)
        means = dict(zip(_PARTS, parts, strict=True))
        return StepParts(steps, rest=max(0.0, whole - sum(parts)), **means)

    def part(self, name: str, begin: float, end: float) -> None:
        if name in self._seconds:
            self._seconds[name] += end - begin
        if name != _WHOLE:
            return
        self._steps += 1
        if end - self._asked > _LINGER:
            self._events.remove(self)
        elif end - self._marks[-1].time >= _APART:
            self._mark(end)

    def _mark(self, now: float) -> None:
        self._marks.append(_PartMark(now, self._steps, tuple(self._seconds.values())))


def _percentiles(values: Iterable[float]) -> Percentiles:
    ordered = sorted(values)
    if not ordered:
        return Percentiles(0, None, None, None)
    last = len(ordered) - 1
    at = (ordered[round(last * share)] for share in (0.5, 0.9, 0.99))
    return Percentiles(len(ordered), *at)


def count_faults(scheduler: Scheduler) -> int:
    """Faults of the KV pool's counts, between requests; they are logged, and put right."""
    try:
        faults = scheduler.audit()
    except Exception:  # whatever it is, requests have been served until now
        logger.exception("the KV pool's counters cannot be checked")
        return 1
    for fault in faults:
        logger.error("the KV pool's counters were wrong, and were corrected: %s", fault)
    return len(faults)
