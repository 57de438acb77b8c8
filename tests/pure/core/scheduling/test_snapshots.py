"""Snapshots of states as the scheduler has them taken: where chunks leave them, what it tells."""

from __future__ import annotations

import pytest

from quire.core.memory import (
    KeptState,
    LayeredAllocator,
    MoveKind,
    PagedAllocator,
    SnapshotPlaces,
    StateAllocator,
)
from quire.core.protocol import Outcome, Request, Sample, Step, StepResult
from quire.core.scheduling import BatchLimits, Caching, Scheduler
from quire.text.params import SamplingParams

SIZE = 4


def make_scheduler(tokens: int = 64, slots: int = 8) -> Scheduler:
    states = StateAllocator(slots, SIZE, 0, KeptState(every=16, decoding=8))
    allocator = LayeredAllocator(SIZE, [PagedAllocator(100, SIZE)], states)
    caching = Caching(places=SnapshotPlaces(16, SIZE, 8))
    return Scheduler(allocator, BatchLimits(4, tokens), caching=caching)


def ask(scheduler: Scheduler, name: str, prompt: list[int]) -> None:
    scheduler.add(Request(name, prompt, SamplingParams(max_tokens=2), 2, seed=0))


def finish(scheduler: Scheduler, step: Step) -> None:
    outcome = Outcome([Sample(7)])
    outcomes = {chunk.seq_id: outcome for chunk in step.chunks if chunk.readout}
    scheduler.update(step, StepResult(outcomes), step.now, lambda progress: False)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("tokens", [64, 13])
def test_chunks_leave_snapshots_on_their_way(ahead: bool, tokens: int) -> None:
    scheduler, now = make_scheduler(tokens), 0.0
    chunks, left = list[tuple[int, int]](), list[int]()
    ask(scheduler, "first", list(range(41)))
    step = scheduler.schedule(now)
    while step.chunks:
        for chunk in step.chunks:
            chunks.append((chunk.start, len(chunk.token_ids)))
            left += sorted(place for place, _ in chunk.left)
            assert len({slot for _, slot in chunk.left}) == len(chunk.left)
        now += 1
        planned = scheduler.schedule_ahead(step, now) if ahead else None
        finish(scheduler, step)
        step = scheduler.schedule(now) if planned is None else planned
    if tokens == 64:
        assert chunks == [(0, 41), (41, 1)]
    else:
        assert chunks == [(0, 13), (13, 13), (26, 13), (39, 2), (41, 1)]
    assert left == [4, 8, 16, 32, 40]


def test_a_place_at_the_end_of_a_chunk_is_left_where_the_sequence_is() -> None:
    scheduler = make_scheduler(16)
    ask(scheduler, "first", list(range(41)))
    step = scheduler.schedule(0.0)
    assert [place for place, _ in step.chunks[0].left] == [4, 8]
    finish(scheduler, step)
    step = scheduler.schedule(1.0)
    assert [move.kind for move in step.moves] == [MoveKind.COPY]
    assert step.chunks[0].left == (), "32 is its end"


def test_what_is_left_takes_no_slot_from_who_needs_it() -> None:
    """Two begin in one step, with four slots: three snapshots are wanted of each."""
    scheduler = make_scheduler(64, slots=4)
    for number in range(2):
        ask(scheduler, str(number), list(range(100 * number, 100 * number + 30)))
    step = scheduler.schedule(0.0)
    left = [one for chunk in step.chunks for one in chunk.left]
    assert len(left) == 2
    assert (
        len({slot for _, slot in left} | {c.table.further[-1].block_ids[0] for c in step.chunks})
        == 4
    )
    ask(scheduler, "2", list(range(200, 230)))
    ask(scheduler, "3", list(range(300, 330)))
    finish(scheduler, step)
    step = scheduler.schedule(1.0)
    assert len(step.chunks) == 4 and not any(chunk.left for chunk in step.chunks)


def test_one_slot_is_left_to_one_of_a_step() -> None:
    """Each next text displaces what the one before was to leave in the only slot there is."""
    scheduler = make_scheduler(64, slots=3)
    for number in range(2):
        ask(scheduler, str(number), list(range(100 * number, 100 * number + 30)))
    step = scheduler.schedule(0.0)
    assert sum(len(chunk.left) for chunk in step.chunks) == 1


def test_a_step_that_fails_has_left_nothing() -> None:
    scheduler = make_scheduler()
    ask(scheduler, "first", list(range(41)))
    step = scheduler.schedule(0.0)
    names = scheduler.running[0].branches[0].block_hashes
    contents = scheduler.allocator.contents
    assert contents is not None and contents.locate_state(names[9]) is not None
    scheduler.abort("first", invalid=True)
    scheduler.invalidate(step)
    assert all(contents.locate_state(name) is None for name in names)


def test_snapshots_are_left_where_a_request_has_marks() -> None:
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
