"""What the engine has done: counters since it started, rates of the last seconds, latencies."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from quire.core.memory import Usage
from quire.core.protocol import Step
from quire.core.scheduling import Scheduler
from quire.engine.outputs import Delta

logger = logging.getLogger(__name__)
_WINDOW, _APART = 10.0, 0.25  # seconds
_LATENCIES = 4096
_POSITIONS = 16  # of drafts; more are counted where there are more


@dataclass
class EngineStats:
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

    def observe_step(self, step: Step, seconds: float) -> None:
        self.num_steps += 1
        self.num_tokens += step.num_tokens
        self.busy_seconds += seconds
        for kind, slots in zip(Usage._fields, step.usage, strict=True):
            self.slot_seconds[kind] += slots * seconds

    def observe_drafts(self, drafted: int, accepted: int) -> None:
        """A sequence was drafted for in a step, and the first ``accepted`` drafts were right."""
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        by_position = self.accepted_by_position
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


class Recent:
    """Told of every step by the engine whose ``stats`` these are.

    due: before that ``begin`` does nothing.
    """

    def __init__(self, stats: EngineStats) -> None:
        self._stats = stats
        self.due = -math.inf
        self._generated = self._begun = self._rows = 0
        self._marks: deque[_Mark] = deque(maxlen=math.ceil(_WINDOW / _APART) + 1)
        self._first: deque[float] = deque(maxlen=_LATENCIES)
        self._between: deque[float] = deque(maxlen=_LATENCIES)

    def observe(self, deltas: Iterable[Delta], rows: int) -> None:
        """A step of so many sequences has ended, and gave this."""
        self._rows += rows
        for delta in deltas:
            if not delta.token_ids:
                continue
            self._generated += len(delta.token_ids)
            if not delta.first:
                self._between.append(delta.seconds)
            else:
                self._begun += 1
                if delta.index == 0:
                    self._first.append(delta.seconds)

    def begin(self, now: float) -> None:
        """A step begins."""
        if now >= self.due:
            self.due = now + _APART
            self._marks.append(self._mark(now))

    def _mark(self, now: float) -> _Mark:
        stats = self._stats
        return _Mark(
            now, stats.num_steps, stats.busy_seconds, stats.num_tokens, self._generated,
            self._begun, self._rows, stats.num_draft_tokens, stats.num_accepted_tokens,
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
        return _percentiles(self._first)

    @property
    def between_tokens(self) -> Percentiles:
        """Between two tokens of an output; those that come together count once."""
        return _percentiles(self._between)


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
        logger.exception("the KV pool's books cannot be audited")
        return 1
    for fault in faults:
        logger.error("the KV pool's books were wrong, and have been put right: %s", fault)
    return len(faults)
