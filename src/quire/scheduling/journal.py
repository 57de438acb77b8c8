"""The scheduler's inputs, in order: all that decides block tables.

Two schedulers, each with an allocator of its own, that are made alike and given the same events
hold the same block tables after each of them. So ranks that follow one journal need not talk about
memory. Events are plain values and can be pickled.
"""

from __future__ import annotations

from typing import NamedTuple

from quire.memory import BlockMove
from quire.scheduling.request import Request
from quire.scheduling.step import Sample, StepResult


class Added(NamedTuple):
    request: Request


class Aborted(NamedTuple):
    request_id: str
    spoiled: bool


class Finished(NamedTuple):
    seq_id: int


class Scheduled(NamedTuple):
    now: float


class ScheduledAhead(NamedTuple):
    """The step after the one that was scheduled last, and is under way, if that can be planned."""

    now: float


class Updated(NamedTuple):
    """Of the steps that were scheduled, the first that was under way has been executed."""

    result: StepResult
    now: float


class Spoiled(NamedTuple):
    moves: tuple[BlockMove, ...]


class SessionOpened(NamedTuple):
    session_id: str
    cache_salt: str
    client: str | None


class Appended(NamedTuple):
    session_id: str
    token_ids: tuple[int, ...]


class TurnAdded(NamedTuple):
    session_id: str
    request: Request


class HardCut(NamedTuple):
    session_id: str


class Recomputed(NamedTuple):
    session_id: str
    last_n: int


class SessionClosed(NamedTuple):
    session_id: str


Event = (
    Added
    | Aborted
    | Finished
    | Scheduled
    | ScheduledAhead
    | Updated
    | Spoiled
    | SessionOpened
    | Appended
    | TurnAdded
    | HardCut
    | Recomputed
    | SessionClosed
)


def deciding(result: StepResult) -> StepResult:
    """The part of a result that decides anything: no log-probabilities."""
    samples = {
        seq_id: [Sample(sample.token_id) for sample in drawn]
        for seq_id, drawn in result.samples.items()
    }
    return StepResult(samples, candidates=result.candidates, failed_moves=result.failed_moves)
