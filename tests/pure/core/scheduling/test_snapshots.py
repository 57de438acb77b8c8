"""Snapshots of states as the scheduler has them taken: where chunks end, and what it tells."""

from __future__ import annotations

import pytest

from quire.core.memory import (
    KeptState,
    LayeredAllocator,
    PagedAllocator,
    SnapshotPlaces,
    StateAllocator,
)
from quire.core.protocol import Outcome, Request, Sample, Step, StepResult
from quire.core.scheduling import BatchLimits, Caching, Scheduler
from quire.text.params import SamplingParams

SIZE = 4


def make_scheduler() -> Scheduler:
    states = StateAllocator(8, SIZE, 0, KeptState(every=16, decoding=8))
    allocator = LayeredAllocator(SIZE, [PagedAllocator(100, SIZE)], states)
    caching = Caching(places=SnapshotPlaces(16, SIZE, 8))
    return Scheduler(allocator, BatchLimits(4, 64), caching=caching)


def ask(scheduler: Scheduler, name: str, prompt: list[int]) -> None:
    scheduler.add(Request(name, prompt, SamplingParams(max_tokens=2), 2, seed=0))


def finish(scheduler: Scheduler, step: Step) -> None:
    outcome = Outcome([Sample(7)])
    outcomes = {chunk.seq_id: outcome for chunk in step.chunks if chunk.readout}
    scheduler.update(step, StepResult(outcomes), step.now, lambda progress: False)


@pytest.mark.parametrize("ahead", [False, True])
def test_chunks_end_where_snapshots_are_taken(ahead: bool) -> None:
    scheduler, chunks, now = make_scheduler(), list[tuple[int, int]](), 0.0
    ask(scheduler, "first", list(range(41)))
    step = scheduler.schedule(now)
    while step.chunks:
        chunks += [(chunk.start, len(chunk.token_ids)) for chunk in step.chunks]
        now += 1
        planned = scheduler.schedule_ahead(step, now) if ahead else None
        finish(scheduler, step)
        step = scheduler.schedule(now) if planned is None else planned
    assert chunks == [(0, 4), (4, 4), (8, 8), (16, 16), (32, 8), (40, 1), (41, 1)]


def test_chunks_end_where_a_request_has_marks() -> None:
    scheduler = make_scheduler()
    params = SamplingParams(max_tokens=2)
    scheduler.add(Request("r", list(range(30)), params, 2, seed=0, keep=[(26, 300.0)]))
    scheduler.schedule(0.0)
    assert list(scheduler.running[0].branches[0].places) == [4, 8, 16, 24, 28]


def test_what_had_blocks_and_no_state_is_told_and_counted() -> None:
    scheduler = make_scheduler()
    why = []
    for number, tail in enumerate((50, 60, 70)):
        ask(scheduler, f"r{number}", [*range(30), *range(tail, tail + 8)])
        while scheduler.has_work:
            step = scheduler.schedule(float(number))
            why += [decision.why for decision in step.decisions]
            finish(scheduler, step)
    assert why == [
        "0 of 38 tokens cached",
        "16 of 38 tokens cached, 12 more have blocks but no snapshot of their state",
        "28 of 38 tokens cached",
    ]
    stats = scheduler.stats
    assert (stats.prefix_hits, stats.prefix_stateless, stats.prefix_evicted) == (44, 12, 0)
