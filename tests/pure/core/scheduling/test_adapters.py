"""Adapters among running requests: few at once, nobody passed for ever, nothing shared."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.memory import PagedAllocator
from quire.core.protocol import Adapter, Request, SchedulingPolicy, Step, Verdict
from quire.text.params import SamplingParams
from support.fake_model import FakeExecutor
from support.outcomes import take_in
from support.schedulers import make_scheduler

A, B, C = (Adapter(name.encode() * 32, name) for name in "ABC")


class Bench:
    """A scheduler of few slots over plenty of memory."""

    def __init__(self, **settings: Any) -> None:
        limits = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_adapters": 1, **settings}
        self.scheduler = make_scheduler(PagedAllocator(100, 4), **limits)
        self.executor = FakeExecutor(100, 4)
        self.clock = 0.0

    def add(self, name: str, adapter: Adapter | None, max_tokens: int = 3, **more: Any) -> None:
        params = SamplingParams(max_tokens=max_tokens)
        request = Request(name, (7, 8, 9, 10, 11), params, max_tokens, 0, adapter=adapter, **more)
        self.scheduler.add(request)

    def step(self) -> Step:
        self.clock += 1
        step = self.scheduler.schedule(self.clock)
        take_in(self.scheduler, step, self.executor.execute(step), self.clock)
        return step

    @property
    def running(self) -> list[str]:
        return [group.request.request_id for group in self.scheduler.running]


def test_who_waits_for_a_slot_is_passed_by_those_who_need_none_and_told_why() -> None:
    bench = Bench()
    for name, adapter in (("a", A), ("b", B), ("base", None), ("c", C), ("a2", A)):
        bench.add(name, adapter, 20)
    step = bench.step()
    # The one slot is promised to b, so nobody new joins the adapter that has it.
    assert bench.running == ["a", "base"]
    waits = {d.request_id: d.why for d in step.decisions if d.what is Verdict.WAIT}
    assert waits == {
        "b": "adapter B waits for a slot: 1 of 1 in use",
        "c": "adapter C waits for a slot: 1 of 1 in use",
    }
    assert bench.scheduler.adapters.wanted == [B, C]


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
def test_nobody_is_passed_for_ever(policy: SchedulingPolicy) -> None:
    """However many come with an adapter that has a slot, the next one's turn comes."""
    bench = Bench(policy=policy, max_adapters=2, max_num_seqs=4)
    bench.add("a", A)
    bench.add("b", B)
    bench.step()
    bench.add("c", C, 1, client="c")
    for number in range(40):
        bench.add(f"a{number}", A, client="many")
        bench.add(f"b{number}", B, client="many")
        bench.step()
        if "c" not in [group.request.request_id for group in bench.scheduler.waiting]:
            assert number < 4
            return
    raise AssertionError("c was never let in")


def test_an_adapter_that_is_being_read_is_waited_for_and_its_slot_is_kept() -> None:
    bench = Bench(max_adapters=1)
    slots = bench.scheduler.adapters
    slots.ready = {B}
    for name, adapter in (("a", A), ("b", B), ("base", None)):
        bench.add(name, adapter)
    step = bench.step()
    assert bench.running == ["base"]
    assert (
        next(d.why for d in step.decisions if d.what is Verdict.WAIT) == "adapter A is being read"
    )
    slots.ready = {A, B}
    bench.step()
    assert bench.running == ["a", "base"] and slots.in_use == [A]


def test_equal_prompts_share_blocks_only_under_one_adapter_and_content() -> None:
    bench = Bench(max_adapters=4)
    renewed = Adapter(b"2" * 32, "A")
    cached = {}
    for name, adapter, salt in (
        ("base", None, ""),
        ("a", A, ""),
        ("b", B, ""),
        ("renewed", renewed, ""),  # called as A was, and another
        ("salted", None, "A"),
        ("again", Adapter(A.fingerprint, "other name"), ""),
    ):
        bench.add(name, adapter, 1, cache_salt=salt)
        group = bench.scheduler.group(name)
        bench.step()
        assert group is not None
        cached[name] = group.memory.cached_tokens
    assert cached == {"base": 0, "a": 0, "b": 0, "renewed": 0, "salted": 0, "again": 4}
