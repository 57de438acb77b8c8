"""Blocks that callers have asked to keep are evicted after all others, for a while."""

from __future__ import annotations

from dataclasses import replace

from quire.core.memory import Demand, PagedAllocator, hash_blocks
from quire.core.protocol import Request, SchedulingPolicy
from quire.core.scheduling import Scheduler
from quire.text.params import SamplingParams
from support.fake_model import FakeExecutor
from support.outcomes import take_in
from support.schedulers import make_scheduler

SIZE = 4


class Memory:
    """Texts that come and go, one after the other."""

    def __init__(self, blocks: int = 16) -> None:
        self.allocator = PagedAllocator(blocks, SIZE)
        self.count = 0
        self.now = 0.0

    def serve(self, first: int, blocks: int, keep: int = 0, seconds: float = 300.0) -> int:
        """Blocks of it that were found."""
        allocator, tokens = self.allocator, [*range(first, first + blocks * SIZE), 1]
        allocator.advance(self.now)
        names = hash_blocks(b"", tokens, SIZE)
        self.count += 1
        found = allocator.admit(self.count, Demand(len(tokens), names))
        assert found is not None
        allocator.append({self.count: len(tokens) - found})
        allocator.commit(self.count, names, len(names))
        allocator.settle()
        if keep:
            allocator.keep(self.count, keep * SIZE, seconds)
        allocator.free(self.count)
        assert allocator.audit(()) == []
        return found // SIZE


def test_what_is_kept_outlives_what_came_later() -> None:
    memory = Memory()
    memory.serve(100, 4, keep=4)
    memory.serve(200, 6)
    memory.serve(300, 11)
    assert memory.serve(200, 6) == 0
    assert memory.serve(100, 4) == 4
    plain = Memory()
    plain.serve(100, 4)
    plain.serve(200, 6)
    plain.serve(300, 11)
    assert plain.serve(100, 4) == 0


def test_only_up_to_where_it_was_asked_and_only_a_share_of_the_pool() -> None:
    memory = Memory()
    memory.serve(100, 8, keep=2)
    assert len(memory.allocator.device.kept.free) == 2
    memory.serve(200, 8, keep=8)
    assert len(memory.allocator.device.kept.free) == 4
    usage = memory.allocator.usage()
    assert usage.capacity == usage.cached + usage.free == 16 * SIZE
    memory.serve(300, 15)  # all others and most of them: nobody is refused for what is kept
    assert memory.allocator.num_free_blocks == 16


def test_its_time_ends() -> None:
    memory = Memory()
    memory.serve(100, 4, keep=4, seconds=300)
    memory.now = 290.0
    assert memory.serve(100, 4) == 4
    assert len(memory.allocator.device.kept.free) == 4  # it was found, and is kept as before
    memory.now = 310.0
    memory.serve(200, 6)
    memory.serve(300, 11)
    assert memory.serve(100, 4) == 0
    assert not memory.allocator.device.kept.until


def test_who_asks_again_has_it_for_longer() -> None:
    memory = Memory()
    memory.serve(100, 4, keep=4, seconds=300)
    memory.now = 290.0
    memory.serve(100, 4, keep=4, seconds=300)
    memory.now = 580.0
    memory.serve(200, 6)
    memory.serve(300, 11)
    assert memory.serve(100, 4) == 4


def test_what_is_cleared_or_lost_is_not_kept() -> None:
    memory = Memory()
    memory.serve(100, 4, keep=4)
    memory.allocator.clear_contents()
    assert not memory.allocator.device.kept.until and memory.allocator.num_free_blocks == 16
    memory.serve(100, 4, keep=4)
    (block, *_) = memory.allocator.device.kept.free
    memory.allocator.invalidate(block)
    assert block not in memory.allocator.device.kept.free
    assert memory.allocator.num_free_blocks == 16 and memory.allocator.audit(()) == []


def run(scheduler: Scheduler, executor: FakeExecutor) -> list[str]:
    """Who is let in, in order."""
    order = []
    while scheduler.has_work:
        step = scheduler.schedule(0.0)
        order += [one.request_id for one in step.decisions if one.what.value == "admit"]
        take_in(scheduler, step, executor.execute(step))
    return order


def test_a_request_keeps_its_prompt_and_its_client_pays_for_it() -> None:
    scheduler = make_scheduler(
        PagedAllocator(16, SIZE), 1, policy=SchedulingPolicy.FAIR, max_num_batched_tokens=64
    )
    executor = FakeExecutor(16, SIZE)
    one = Request("a1", tuple(range(1, 13)), SamplingParams(max_tokens=1), 1, 0, client="anna")
    kept = replace(one, keep=((8, 300.0), (4, 3600.0)))
    assert kept.keeping_tokens == 4 and one.keeping_tokens == 0
    others = [
        replace(one, request_id="b1", client="bert", prompt_token_ids=tuple(range(20, 34))),
        replace(kept, request_id="a2", prompt_token_ids=tuple(range(40, 52))),
        replace(one, request_id="b2", client="bert", prompt_token_ids=tuple(range(60, 72))),
    ]
    for request in (kept, *others):
        scheduler.add(request)
    # bert's first prompt is longer than anna's, but not than what she pays.
    assert run(scheduler, executor) == ["a1", "b1", "b2", "a2"]
    assert len(scheduler.allocator.views()[0].cached_blocks()) > 4
