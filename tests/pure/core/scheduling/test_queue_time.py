"""Requests that wait for too long without having been let in end by themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.core.memory import PagedAllocator
from quire.core.protocol import Decision, Request, SchedulingPolicy, Step, Verdict
from quire.core.scheduling import Scheduler, Session
from quire.text.params import SamplingParams
from support.outcomes import answer, take_in
from support.schedulers import make_scheduler


def make(blocks: int = 64, **limits: Any) -> Scheduler:
    settings = {"max_num_seqs": 1, "max_num_batched_tokens": 16, "max_queue_time": 5.0, **limits}
    return make_scheduler(PagedAllocator(blocks, 4), **settings)


def request(name: str, arrival: float = 0.0, prompt: int = 4, max_tokens: int = 100) -> Request:
    tokens = tuple(range(ord(name[0]), ord(name[0]) + prompt))
    params = SamplingParams(max_tokens=max_tokens)
    return Request(name, tokens, params, max_tokens, seed=1, arrival=arrival)


def expired(step: Step) -> list[Decision]:
    return [decision for decision in step.decisions if decision.what is Verdict.EXPIRE]


def run(scheduler: Scheduler, now: float) -> Step:
    step = scheduler.schedule(now)
    take_in(scheduler, step, answer(step), now)
    return step


def test_who_waits_longer_ends_and_is_told_why() -> None:
    scheduler = make()
    for name, arrival in (("a", 0.0), ("b", 1.0), ("c", 2.0)):
        scheduler.add(request(name, arrival))
    assert not expired(run(scheduler, 0.0))
    assert not expired(run(scheduler, 6.0)), "b has waited for just as long as it may"
    (decision,) = expired(run(scheduler, 6.5))
    assert decision.request_id == "b"
    assert decision.why == "waited 5.5 s to be let in; max_queue_time is 5 s"
    assert scheduler.group("b") is None
    assert [group.request.request_id for group in scheduler.waiting] == ["c"]
    assert scheduler.stats.decisions["expire"] == 1


def test_under_every_policy_whoever_came_first_ends_first() -> None:
    for policy in SchedulingPolicy:
        scheduler = make(policy=policy)
        scheduler.add(request("a"))
        run(scheduler, 0.0)
        for number, priority in enumerate((3, -3, 0)):
            one = request(f"b{number}", float(number))
            if policy is not SchedulingPolicy.FCFS:
                one = replace(one, priority=priority, client=f"client{number}")
            scheduler.add(one)
        names = [decision.request_id for decision in expired(run(scheduler, 6.5))]
        assert names == ["b0", "b1"], policy


def test_whoever_was_let_in_once_may_wait_as_long_as_it_takes() -> None:
    scheduler = make(blocks=6, max_num_seqs=2)
    for name in ("a", "b"):
        scheduler.add(request(name, prompt=8, max_tokens=12))
    now, preempted = 0.0, 0
    while scheduler.has_work:
        step = run(scheduler, now)
        assert not expired(step)
        preempted += sum(decision.what.preempts for decision in step.decisions)
        now += 100.0 if preempted else 0.1
    assert preempted


def test_a_step_may_be_empty_but_for_those_it_ends() -> None:
    scheduler = make()
    scheduler.add(request("a"))
    step = scheduler.schedule(10.0)
    assert not step.chunks and len(expired(step)) == 1
    assert take_in(scheduler, step, answer(step), 10.0) == []
    assert not scheduler.has_work
    assert scheduler.allocator.usage().used == 0


def test_a_turn_that_waited_too_long_leaves_its_session_usable() -> None:
    scheduler = make()
    session = scheduler.sessions.open(replace(request("s"), prompt_token_ids=()), Session)
    session.append([1, 2, 3, 4, 5])
    scheduler.add(replace(request("t0", max_tokens=2), prompt_token_ids=(1, 2, 3, 4, 5)), session)
    for _ in range(2):
        run(scheduler, 0.0)
    assert list(session.history) == [1, 2, 3, 4, 5, 7, 7]
    scheduler.add(request("a"))
    run(scheduler, 0.0)
    session.append([8])
    scheduler.add(replace(request("t1"), prompt_token_ids=(8,)), session)
    assert [decision.request_id for decision in expired(run(scheduler, 9.0))] == ["t1"]
    scheduler.abort("a")
    assert session.turn is None
    scheduler.add(replace(request("t2", 9.0, max_tokens=1), prompt_token_ids=()), session)
    step = run(scheduler, 9.0)
    # Its blocks have stayed: only the last token of turn t0 and the new one are computed.
    assert [chunk.token_ids for chunk in step.chunks] == [[7, 8]]
    assert list(session.history) == [1, 2, 3, 4, 5, 7, 7, 8, 7]


def test_steps_planned_ahead_end_them_too() -> None:
    scheduler = make()
    scheduler.add(request("a"))
    scheduler.add(request("b"))
    step, now, ended = scheduler.schedule(0.0), 0.0, []
    while not ended:
        now += 1.0
        ahead = scheduler.schedule_ahead(step, now)
        assert ahead is not None and ahead.chunks
        ended = expired(ahead)
        take_in(scheduler, step, answer(step), now)
        step = ahead
    assert now == 6.0 and ended[0].request_id == "b"


def test_nobody_is_ended_where_no_step_would_tell() -> None:
    scheduler = make()
    scheduler.add(request("a", max_tokens=1))
    scheduler.add(request("b"))
    step = scheduler.schedule(0.0)
    assert scheduler.schedule_ahead(step, 6.0) is None, "a ends with the step, b has to wait"
    take_in(scheduler, step, answer(step), 6.0)
    assert [decision.request_id for decision in expired(scheduler.schedule(6.0))] == ["b"]
