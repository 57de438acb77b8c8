"""A request that is given no token sits steps out: it holds nothing, and loses nothing."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from quire.core.memory import PagedAllocator
from quire.core.protocol import Outcome, Request, SchedulingPolicy, Step, StepResult, Verdict
from quire.core.scheduling import Scheduler
from quire.text.params import SamplingParams
from support.outcomes import answer, take_in
from support.schedulers import make_scheduler


def request(name: str, n: int = 1) -> Request:
    prompt = tuple(range(100 * len(name), 100 * len(name) + 9))
    return Request(name, prompt, SamplingParams(n=n, max_tokens=8), 8, seed=0, client=name)


def make(**settings: object) -> Scheduler:
    return make_scheduler(PagedAllocator(40, 4), **settings)  # type: ignore[arg-type]


def late(step: Step, seq_ids: Collection[int]) -> StepResult:
    result = answer(step)
    for seq_id in seq_ids:
        if seq_id in result.outcomes:
            result.outcomes[seq_id] = Outcome(late=True)
    return result


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("steps", [0, 2])
def test_it_waits_until_it_is_recalled_and_others_go_on(n: int, steps: int) -> None:
    scheduler = make()
    group, other = scheduler.add(request("a", n)), scheduler.add(request("bb"))
    for _ in range(steps):
        step = scheduler.schedule(0.0)
        take_in(scheduler, step, answer(step))
    before = [branch.token_ids.tolist() for branch in group.branches]
    step = scheduler.schedule(0.0)
    take_in(scheduler, step, late(step, [group.branches[0].seq_id]))
    assert group.tables() == [] and group.branches[0].token_ids.tolist() == before[0]
    step = scheduler.schedule(0.0)
    assert [d.what for d in step.decisions] == [Verdict.SIT_OUT]
    for _ in range(3):
        assert {chunk.seq_id for chunk in step.chunks} == {other.branches[0].seq_id}
        take_in(scheduler, step, answer(step))
        step = scheduler.schedule(0.0)
    take_in(scheduler, step, answer(step))
    scheduler.sit_out([])
    while scheduler.has_work:
        step = scheduler.schedule(0.0)
        take_in(scheduler, step, answer(step))
    usage = scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity and not scheduler.audit()


@pytest.mark.parametrize("recalled", [False, True])
def test_what_was_planned_ahead_of_it_counts_for_nothing(recalled: bool) -> None:
    scheduler = make()
    group = scheduler.add(request("a"))
    for _ in range(2):
        step = scheduler.schedule(0.0)
        take_in(scheduler, step, answer(step))
    known = group.branches[0].token_ids.tolist()
    step = scheduler.schedule(0.0)
    ahead = scheduler.schedule_ahead(step, 0.0)
    assert ahead is not None and len(ahead.chunks) == 1
    take_in(scheduler, step, late(step, [group.branches[0].seq_id]))
    if recalled:
        scheduler.sit_out([])
        again = scheduler.schedule_ahead(ahead, 0.0)
        assert again is not None and len(again.chunks) == 1
    take_in(scheduler, ahead, answer(ahead))
    assert group.branches[0].token_ids.tolist() == known
    scheduler.sit_out([])
    while scheduler.has_work:
        step = again if recalled else scheduler.schedule(0.0)
        recalled = False
        assert step is not None
        take_in(scheduler, step, answer(step))
    assert not scheduler.audit()


def test_what_is_aborted_while_it_sits_out_leaves_nothing() -> None:
    scheduler = make()
    group = scheduler.add(request("a"))
    step = scheduler.schedule(0.0)
    take_in(scheduler, step, late(step, [group.branches[0].seq_id]))
    assert scheduler.abort("a") and not scheduler.has_work
    assert not scheduler.schedule(0.0).chunks


def test_what_it_takes_beside_the_model_is_charged_as_tokens_of_that_time() -> None:
    scheduler = make(max_num_seqs=1, policy=SchedulingPolicy.FAIR)
    group = scheduler.add(request("a"))
    step = scheduler.schedule(0.0)
    take_in(scheduler, step, answer(step), 0.5)
    scheduler.add(request("bb"))  # so that there are accounts
    accounts = scheduler.queue.accounts
    assert accounts is not None
    for outcome, tokens in ((Outcome(answer(step).outcomes[0].tokens, beside=3.0), 7), (None, 1)):
        step = scheduler.schedule(1.0)
        result = answer(step)
        seq_id = group.branches[0].seq_id
        if outcome is not None:
            result.outcomes[seq_id] = outcome
        account = accounts._accounts.get("a")
        before = 0.0 if account is None else account.served
        take_in(scheduler, step, result, 1.5)  # a token in half a second
        assert accounts._accounts["a"].served - before == tokens
