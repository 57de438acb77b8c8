"""The scheduler's choices, one at a time."""

from __future__ import annotations

from typing import Any

import pytest

from quire.errors import RequestError
from quire.memory import PagedAllocator
from quire.scheduling import Request, SamplingParams, Scheduler, Verdict
from support.fake_model import FakeExecutor


def request(name: str, prompt: int = 4, max_tokens: int = 8, **params: Any) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, **params)
    tokens = tuple(range(ord(name[0]), ord(name[0]) + prompt))
    return Request(name, tokens, sampling, max_tokens, seed=1)


class Bench:
    def __init__(self, blocks: int = 64, size: int = 4, **limits: Any) -> None:
        self.allocator = PagedAllocator(blocks, size)
        settings = {"max_num_seqs": 8, "max_num_batched_tokens": 16, **limits}
        self.scheduler = Scheduler(self.allocator, **settings)
        self.executor = FakeExecutor(blocks, size)
        self.clock = 0.0

    def step(self) -> dict[str, int]:
        """Run one step; {request_id: tokens computed}."""
        step = self.scheduler.schedule(self.clock)
        self.clock += 1.0
        self.scheduler.update(step, self.executor.execute(step), self.clock)
        self.latest = step
        done: dict[str, int] = {}
        for chunk in step.chunks:
            name = chunk.request.request_id
            done[name] = done.get(name, 0) + len(chunk.token_ids)
        return done


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
    bench = Bench(enable_prefix_caching=False)
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
