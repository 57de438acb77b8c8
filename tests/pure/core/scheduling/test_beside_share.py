"""What requests ask for beside tokens has a budget of time in each step: they take turns in it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from quire.core.memory import PagedAllocator
from quire.core.protocol import Request, SchedulingPolicy, Step, Verdict
from quire.core.scheduling import Scheduler, SequenceGroup
from quire.core.scheduling.sharing import BESIDE_SECONDS
from quire.text.params import SamplingParams
from support.outcomes import answer, take_in
from support.schedulers import make_scheduler

ROW = 0.008  # seconds: two rows have room in a step


def request(name: str, n: int = 1, length: int = 8, *, scored: bool = True) -> Request:
    params = SamplingParams(n=n, max_tokens=length, logprobs=1 if scored else None)
    return Request(name, (7, ord(name[0]), 9), params, length, seed=0, client=name)


def make(**settings: object) -> Scheduler:
    return make_scheduler(PagedAllocator(400, 4), **settings)  # type: ignore[arg-type]


def run(
    scheduler: Scheduler, delays: Callable[[Step], Mapping[int, float]], now: float = 0.0
) -> Step:
    """One step, of which so much is beside the model, by sequence."""
    step = scheduler.schedule(now)
    beside = dict(delays(step))
    result = replace(answer(step), delays=beside)
    take_in(scheduler, step, result, now + 0.001 + sum(beside.values()))
    assert not scheduler.audit()
    return step


def of(groups: list[SequenceGroup], seconds: float = ROW) -> Callable[[Step], Mapping[int, float]]:
    def delays(step: Step) -> Mapping[int, float]:
        ids = {branch.seq_id for group in groups for branch in group.branches}
        return {chunk.seq_id: seconds for chunk in step.chunks if chunk.seq_id in ids}

    return delays


def in_step(step: Step, groups: list[SequenceGroup]) -> list[str]:
    ids = {chunk.seq_id for chunk in step.chunks}
    return [
        group.request.request_id
        for group in groups
        if any(branch.seq_id in ids for branch in group.branches)
    ]


def test_those_who_cost_time_take_turns_and_others_go_on() -> None:
    scheduler = make()
    costly = [scheduler.add(request(name, length=40)) for name in "abcde"]
    free = scheduler.add(request("free", length=40, scored=False))
    run(scheduler, of(costly))  # nobody knows yet what they cost
    turns: Counter[str] = Counter()
    for _ in range(10):
        step = run(scheduler, of(costly))
        assert in_step(step, [free]) == ["free"]
        assert len(in_step(step, costly)) == 2 and 2 * ROW <= BESIDE_SECONDS
        turns.update(in_step(step, costly))
    assert set(turns.values()) == {4}, "each as often as another"


def test_who_sits_out_is_told_once_and_loses_nothing() -> None:
    scheduler = make()
    costly = [scheduler.add(request(name, length=9)) for name in "abc"]
    told: Counter[str] = Counter()
    while scheduler.has_work:
        step = run(scheduler, of(costly))
        told.update(d.request_id for d in step.decisions if d.what is Verdict.SIT_OUT)
        assert not any(d.what.preempts for d in step.decisions)
    assert told and max(told.values()) < 9
    assert scheduler.stats.decisions["sit_out"] == sum(told.values())


def test_a_budget_is_a_share_of_a_long_step() -> None:
    scheduler = make()
    costly = [scheduler.add(request(name, length=40)) for name in "abcde"]

    def slow() -> Step:
        step = scheduler.schedule(0.0)
        delays = dict(of(costly)(step))
        take_in(scheduler, step, replace(answer(step), delays=delays), 0.09 + sum(delays.values()))
        return step

    slow()
    assert len(in_step(slow(), costly)) == 5  # 40 ms of 90


def test_of_one_that_takes_too_much_alone_some_branches_compute() -> None:
    scheduler = make()
    wide = scheduler.add(request("wide", n=8))
    run(scheduler, of([wide]))
    steps = 0
    while scheduler.has_work:
        assert len(run(scheduler, of([wide])).chunks) <= 2
        steps += 1
    assert steps == 8 * 7 / 2  # the first tokens come of one row


def test_newcomers_come_in_as_there_is_time_for_them() -> None:
    scheduler = make()
    first = scheduler.add(request("a", length=3))
    run(scheduler, of([first]))
    costly = [first, *(scheduler.add(request(f"{i}", length=1)) for i in range(9))]
    steps = 0
    while scheduler.has_work:
        assert 1 <= len(run(scheduler, of(costly)).chunks) <= 2
        steps += 1
    assert steps <= 8


def test_time_in_steps_is_charged_as_tokens_of_that_time() -> None:
    scheduler = make(max_num_seqs=1, policy=SchedulingPolicy.FAIR)
    group = scheduler.add(request("a"))
    run(scheduler, of([]))
    scheduler.add(request("b"))  # so that there are accounts
    accounts = scheduler.queue.accounts
    assert accounts is not None
    step = scheduler.schedule(1.0)
    delays = {group.branches[0].seq_id: 3.0}
    take_in(scheduler, step, replace(answer(step), delays=delays), 1.5)  # a token in half a second
    assert accounts._accounts["a"].served == 1 + 6


def test_a_step_is_not_planned_ahead_of_turns() -> None:
    scheduler = make()
    for name in "abc":
        scheduler.add(request(name, length=40))
    run(scheduler, of([]))
    ahead = scheduler.schedule(0.0)
    assert scheduler.schedule_ahead(ahead, 0.0) is not None
    scheduler = make()
    costly = [scheduler.add(request(name, length=40)) for name in "abc"]
    run(scheduler, of(costly))
    step = scheduler.schedule(0.0)
    assert len(step.chunks) == 2 and scheduler.schedule_ahead(step, 0.0) is None


@pytest.mark.parametrize("seed", range(20))
def test_all_come_to_their_end_whatever_it_costs(seed: int) -> None:
    rng = random.Random(seed)
    scheduler = make_scheduler(PagedAllocator(24, 4), 16, 64)
    names = [f"{i}" for i in range(12)]
    for name in names:
        n, length = rng.choice([1, 1, 3]), rng.randint(1, 12)
        scheduler.add(request(name, n, length, scored=rng.random() < 0.7))
    costs = {name: rng.choice([0.0, 0.001, 0.012, 0.05]) for name in names}

    def delays(step: Step) -> Mapping[int, float]:
        found = {}
        for chunk in step.chunks:
            owner = scheduler.request_of(chunk.seq_id)
            if owner is not None and chunk.readout is not None and costs[owner.request_id]:
                found[chunk.seq_id] = costs[owner.request_id]
        return found

    for number in range(600):
        if not scheduler.has_work:
            break
        run(scheduler, delays, now=float(number))
    assert not scheduler.has_work
