"""The scheduler's choices, one at a time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from quire.core.errors import RequestError
from quire.core.memory import PagedAllocator
from quire.core.protocol import (
    Decision,
    PreemptionMode,
    RecoveryCosts,
    Request,
    SchedulingPolicy,
    Verdict,
)
from quire.core.scheduling.request_queue import PRIORITY_SECONDS
from quire.text.params import SamplingParams
from support.fake_model import FakeExecutor
from support.outcomes import take_in
from support.schedulers import make_scheduler

_STARTS = (Verdict.ADMIT, Verdict.RESUME)


def request(name: str, prompt: int = 4, max_tokens: int = 8, **params: Any) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, **params)
    tokens = tuple(range(ord(name[0]), ord(name[0]) + prompt))
    return Request(name, tokens, sampling, max_tokens, seed=1)


class Bench:
    def __init__(
        self,
        blocks: int = 64,
        size: int = 4,
        allocator: PagedAllocator | None = None,
        **limits: Any,
    ) -> None:
        self.allocator = allocator or PagedAllocator(blocks, size)
        settings = {"max_num_seqs": 8, "max_num_batched_tokens": 16, **limits}
        self.scheduler = make_scheduler(self.allocator, **settings)
        self.executor = FakeExecutor(
            self.allocator.device.num_blocks, size, self.allocator.host.num_blocks
        )
        self.clock = 0.0

    def step(self) -> dict[str, int]:
        """Run one step; {request_id: tokens computed}."""
        step = self.scheduler.schedule(self.clock)
        self.clock += 1.0
        whose = self.executor.roster.follow(step)
        take_in(self.scheduler, step, self.executor.compute(step, whose), self.clock)
        self.latest = step
        done: dict[str, int] = {}
        for chunk, known in zip(step.chunks, whose, strict=True):
            name = known.request.request_id
            done[name] = done.get(name, 0) + len(chunk.token_ids)
        return done

    def decide(self) -> list[Decision]:
        """Run one step; what was decided."""
        self.step()
        return self.latest.decisions


def test_a_long_prompt_is_prefilled_in_chunks_beside_decodes() -> None:
    bench = Bench()
    bench.scheduler.add(request("a", prompt=4))
    assert bench.step() == {"a": 4}
    bench.scheduler.add(request("b", prompt=40))
    assert bench.step() == {"a": 1, "b": 15}
    assert bench.step() == {"a": 1, "b": 15}
    assert bench.step() == {"a": 1, "b": 10}
    assert bench.step() == {"a": 1, "b": 1}


def test_first_come_first_served_even_if_a_later_one_would_fit() -> None:
    bench = Bench(blocks=6)
    bench.scheduler.add(request("a", prompt=12, max_tokens=4))
    bench.step()
    bench.scheduler.add(request("b", prompt=16))
    bench.scheduler.add(request("c", prompt=2))
    assert bench.step() == {"a": 1}
    (decision,) = bench.latest.decisions
    assert (decision.what, decision.request_id) == (Verdict.WAIT, "b")
    assert decision.needed > decision.free == 2


def test_max_num_seqs_counts_the_samples_a_request_will_become() -> None:
    bench = Bench(max_num_seqs=4)
    bench.scheduler.add(request("a", n=3))
    bench.scheduler.add(request("b", n=2))
    assert bench.step() == {"a": 4}
    assert bench.latest.decisions[-1].why == "max_num_seqs sequences are running"
    assert bench.step() == {"a": 3}


def test_the_latest_arrival_gives_way_and_the_reason_is_told() -> None:
    bench = Bench(blocks=6)
    bench.scheduler.add(request("a", prompt=8, max_tokens=12))
    bench.scheduler.add(request("b", prompt=8, max_tokens=12))
    preemptions = []
    while bench.scheduler.has_work:
        bench.step()
        preemptions += [d for d in bench.latest.decisions if d.what.preempts]
    assert [d.request_id for d in preemptions] == ["b"]
    assert preemptions[0].needed == 1 and preemptions[0].free == 0
    assert "a could not grow" in preemptions[0].why


def test_equal_prompts_hit_the_prefix_cache() -> None:
    bench = Bench()
    for name in ("x1", "x2"):
        bench.scheduler.add(request(name, prompt=10, max_tokens=1))
        assert bench.step() == {name: 10 if name == "x1" else 2}
    assert (bench.scheduler.stats.prefix_queries, bench.scheduler.stats.prefix_hits) == (20, 8)


def test_without_prefix_caching_nothing_is_kept() -> None:
    bench = Bench(caching=None)
    for name in ("x1", "x2"):
        bench.scheduler.add(request(name, prompt=10, max_tokens=1))
        assert bench.step() == {name: 10}
    assert bench.allocator.usage().cached == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt": 33}, "prompt"),
        ({"prompt": 20, "max_tokens": 14}, "max_tokens"),
        ({"prompt": 8, "max_tokens": 9, "n": 4}, "n"),
        ({"n": 9}, "n"),
    ],
)
def test_what_can_never_fit_is_refused_with_the_numbers(
    changes: dict[str, Any], field: str
) -> None:
    bench = Bench(blocks=8)
    before = bench.allocator.usage()
    with pytest.raises(RequestError, match=r"\d") as caught:
        bench.scheduler.add(request("a", **changes))
    assert caught.value.field == field
    assert bench.allocator.usage() == before
    assert not bench.scheduler.has_work


def test_what_fits_exactly_is_accepted_and_finishes() -> None:
    bench = Bench(blocks=8)
    # 8 prompt tokens are shared; each of 3 branches needs 2 blocks of its own for 8 + 8 tokens.
    bench.scheduler.add(request("a", prompt=8, max_tokens=9, n=3))
    while bench.scheduler.has_work:
        bench.step()
    assert bench.allocator.usage().used == 0


def test_the_memory_story_of_a_request() -> None:
    bench = Bench()
    group = bench.scheduler.add(request("a", prompt=6, max_tokens=3, n=2))
    while bench.scheduler.has_work:
        bench.step()
    # Steps of one second each: 2 blocks; then 3, one being copied on write; then 3.
    assert group.memory.peak_blocks == 3
    assert group.memory.block_seconds == pytest.approx(2 + 3 + 3)
    assert group.memory.blocks == 0


def test_abort_frees_at_once_whatever_the_state() -> None:
    bench = Bench(blocks=8)
    for name in ("a", "b", "c"):
        bench.scheduler.add(request(name, prompt=12, max_tokens=8))
    bench.step()
    assert all(bench.scheduler.abort(name) for name in ("a", "b", "c"))
    assert not bench.scheduler.abort("a")
    assert not bench.scheduler.has_work
    assert bench.allocator.usage().used == 0


def priority_bench(**limits: Any) -> Bench:
    return Bench(policy=SchedulingPolicy.PRIORITY, max_num_seqs=1, **limits)


def with_priority(name: str, arrival: float, priority: int) -> Request:
    return replace(request(name, max_tokens=2), arrival=arrival, priority=priority)


def test_priority_decides_who_goes_first_then_arrival() -> None:
    bench = priority_bench()
    for name, priority in (("a", 1), ("b", 0), ("c", -1), ("d", -1)):
        bench.scheduler.add(with_priority(name, 0.0, priority))
    order = []
    while bench.scheduler.has_work:
        order += bench.step()
    assert list(dict.fromkeys(order)) == ["c", "d", "b", "a"]


def test_nobody_starves_behind_a_stream_of_urgent_requests() -> None:
    bench = priority_bench()
    bench.scheduler.add(with_priority("patient", 0.0, 5))
    served: set[str] = set()
    for number in range(300):  # an urgent one arrives each second, and each takes two
        bench.scheduler.add(with_priority(f"u{number}", bench.clock, -5))
        served.update(bench.step())
        if "patient" in served:
            break
    # Ten levels are worth PRIORITY_SECONDS each: whoever came later than that is behind.
    assert "patient" in served
    assert len(served) <= 10 * PRIORITY_SECONDS + 2


@pytest.mark.parametrize("streams", [1, 7, 8, 15])
def test_streams_go_on_while_a_more_urgent_prompt_is_computed(streams: int) -> None:
    """Each in every step if that leaves half of it; otherwise in turn. The prompt has its half."""
    budget, prompt = 16, 450
    limits: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": budget}
    bench = Bench(blocks=1000, policy=SchedulingPolicy.PRIORITY, **limits)
    names = [f"s{number}" for number in range(streams)]
    for name in names:
        bench.scheduler.add(request(name, prompt=1, max_tokens=400))
    bench.step()
    bench.scheduler.add(replace(request("urgent", prompt=prompt), priority=-5))
    bench.step()
    steps = []
    while bench.scheduler.group("urgent").branches[0].num_pending > 1:  # type: ignore[union-attr]
        steps.append(bench.step())
    assert all(sum(step.values()) == budget for step in steps[:-1]), "nothing is left unused"
    own = [step.get("urgent", 0) for step in steps]
    assert min(own[:-1]) >= budget // 2 and len(steps) <= -(-prompt // (budget // 2))
    longest = 1 if streams <= budget // 2 else -(-streams // (budget // 2))
    for name in names:
        places = [-1, *(number for number, step in enumerate(steps) if name in step), len(steps)]
        gaps = [after - before for before, after in pairwise(places)]
        assert max(gaps[:-1]) <= longest and gaps[-1] <= longest + 1


def test_a_step_that_would_pass_a_stream_over_is_not_planned_ahead() -> None:
    bench = Bench(blocks=1000, policy=SchedulingPolicy.PRIORITY)
    bench.scheduler.add(request("stream", prompt=1, max_tokens=400))
    bench.step()
    bench.scheduler.add(replace(request("urgent", prompt=100), priority=-5))
    bench.step()
    step = bench.scheduler.schedule(bench.clock)
    assert len(step.chunks) == 2
    assert bench.scheduler.schedule_ahead(step, bench.clock) is None


def test_beams_wider_than_half_a_step_take_turns_with_a_more_urgent_prompt() -> None:
    limits: dict[str, Any] = {"max_num_seqs": 12, "max_num_batched_tokens": 12}
    bench = Bench(blocks=1000, policy=SchedulingPolicy.PRIORITY, **limits)
    params = SamplingParams(use_beam_search=True, n=8, max_tokens=200)
    bench.scheduler.add(replace(request("beams", prompt=4), params=params, max_tokens=200))
    for _ in range(4):
        bench.step()
    bench.scheduler.add(replace(request("urgent", prompt=200), priority=-5))
    steps = [bench.step() for _ in range(24)]
    assert sum("beams" in step for step in steps) >= 16
    assert sum(step["urgent"] for step in steps) >= 24 * 6 - 12


def test_priority_needs_its_policy() -> None:
    with pytest.raises(RequestError, match="scheduling_policy"):
        Bench().scheduler.add(with_priority("a", 0.0, 1))


def swap_bench() -> Bench:
    allocator = PagedAllocator(6, 4, num_host_blocks=8)
    return Bench(allocator=allocator, mode=PreemptionMode.SWAP)


def test_a_swapped_group_comes_back_before_anyone_behind_it() -> None:
    bench = swap_bench()
    bench.scheduler.add(request("a", prompt=8, max_tokens=12))
    bench.scheduler.add(request("b", prompt=8, max_tokens=12))
    while not any(d.what is Verdict.SWAP for d in bench.decide()):
        pass
    bench.scheduler.add(request("c", prompt=1, max_tokens=1))
    order = [d.request_id for _ in range(40) for d in bench.decide() if d.what in _STARTS]
    assert order == ["b", "c"]


def test_swapping_in_adopts_what_the_device_still_has() -> None:
    bench = swap_bench()
    bench.scheduler.add(request("a", prompt=8, max_tokens=12))
    group = bench.scheduler.add(request("b", prompt=8, max_tokens=12))
    while bench.scheduler.has_work:
        bench.decide()
    assert group.memory.num_swaps == 1
    # Three blocks went out; of the two full ones, the last to be overwritten is still there.
    assert 3 <= group.memory.swapped_blocks < 6


def test_auto_takes_the_cheaper_way_and_says_both_prices() -> None:
    for swap_cost, expected in ((0.001, Verdict.SWAP), (1.0, Verdict.RECOMPUTE)):
        allocator = PagedAllocator(6, 4, num_host_blocks=8)
        costs = RecoveryCosts(swap_per_block=swap_cost, recompute_per_token=0.01)
        bench = Bench(allocator=allocator, mode=PreemptionMode.AUTO, costs=costs)
        bench.scheduler.add(request("a", prompt=8, max_tokens=12))
        bench.scheduler.add(request("b", prompt=8, max_tokens=12))
        while not (decisions := [d for d in bench.decide() if d.what.preempts]):
            pass
        assert decisions[0].what is expected
        assert decisions[0].swap_seconds == pytest.approx(2 * 3 * swap_cost)
        assert decisions[0].recompute_seconds == pytest.approx(3 * 4 * 0.01)


def test_equal_prompts_in_one_step_share() -> None:
    bench = Bench(max_num_batched_tokens=64)
    first = bench.scheduler.add(request("x1", prompt=13))
    second = bench.scheduler.add(request("x2", prompt=13))
    assert bench.step() == {"x1": 13, "x2": 1}
    assert (first.memory.cached_tokens, second.memory.cached_tokens) == (0, 12)


def test_a_fully_cached_prompt_computes_one_token_in_a_copy() -> None:
    bench = Bench()
    bench.scheduler.add(request("x1", prompt=8, max_tokens=4))
    bench.step()
    group = bench.scheduler.add(request("x2", prompt=8, max_tokens=4))
    assert bench.step() == {"x1": 1, "x2": 1}
    assert group.memory.copied_blocks == 1


def test_a_salt_keeps_prefixes_apart() -> None:
    bench = Bench()
    for name, salt, computed in (("x1", "a", 10), ("x2", "b", 10), ("x3", "a", 2)):
        bench.scheduler.add(replace(request(name, prompt=10, max_tokens=1), cache_salt=salt))
        assert bench.step() == {name: computed}


def test_a_chat_reuses_what_was_generated() -> None:
    bench = Bench()
    first = request("x1", prompt=8, max_tokens=9)
    group = bench.scheduler.add(first)
    trunk = group.branches[0]
    while bench.scheduler.has_work:
        bench.step()
    turn = replace(first, request_id="x2", prompt_token_ids=(*trunk.token_ids, 1, 2))
    group = bench.scheduler.add(turn)
    bench.step()
    assert group.memory.cached_tokens == 16


def test_misses_are_told_apart() -> None:
    bench = Bench(blocks=4)
    for name, prompt in (("a", 11), ("b", 12), ("a2", 11)):
        bench.scheduler.add(request(name, prompt=prompt, max_tokens=1))
        bench.step()
    stats = bench.scheduler.stats
    assert stats.prefix_queries == 11 + 12 + 11
    # Of a's two full blocks b's prompt took one, the tail; its prefix is still there.
    assert (stats.prefix_hits, stats.prefix_evicted) == (4, 4)
    assert stats.prefix_tails == 2 + 0 + 2


def test_invalid_blocks_are_not_found_again() -> None:
    bench = Bench()
    bench.scheduler.add(request("x1", prompt=10, max_tokens=1))
    bench.executor.roster.follow(bench.scheduler.schedule(0.0))
    bench.scheduler.abort("x1", invalid=True)
    assert bench.allocator.usage().cached == 0
    bench.scheduler.add(request("x2", prompt=10, max_tokens=1))
    assert bench.step() == {"x2": 10}


def test_shared_blocks_are_charged_in_equal_parts() -> None:
    bench = Bench()
    groups = [bench.scheduler.add(request(name, prompt=9, max_tokens=2)) for name in ("x1", "x2")]
    bench.step()
    bench.step()
    # Two seconds: two blocks shared, one each of their own.
    assert [g.memory.block_seconds for g in groups] == [pytest.approx(2 * (1 + 1))] * 2
