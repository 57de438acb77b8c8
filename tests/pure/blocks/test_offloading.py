"""What is fetched from beyond the pool is what would have been computed, or is computed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from lives.life import Run
from lives.script import draw

from quire.blocks.offloading import Offloading
from quire.core.memory import (
    OUTSIDE,
    BlockMove,
    Content,
    Demand,
    KeptState,
    LayeredAllocator,
    MoveKind,
    PagedAllocator,
    StateAllocator,
    hash_blocks,
    name_of_state,
)
from quire.core.protocol import RecoveryCosts, Step
from quire.core.scheduling import BatchLimits, Scheduler
from quire.core.scheduling.sequence import Sequence
from support.fake_source import FakeSource


def test_what_cannot_be_had_is_asked_for_once() -> None:
    """Of a source that says for ever that it has what it never gives."""
    asked = 0
    for number in range(20):
        life = draw(number)
        settings = replace(
            life.settings,
            forgets=0.0,
            lost_moves=0.0,
            caching=True,
            costs=RecoveryCosts(0.0, 1.0),
        )
        first = Run(replace(life, settings=settings))
        first.go()
        again = Run(replace(life, settings=settings))
        assert first.source is not None and again.source is not None
        again.source.lose_all_of(first.source)
        again.go()
        most = first.source.stored * len(again.requests) * len(again.device.pools)
        assert again.device.num_lost <= most, "each request asks once"
        asked += again.device.num_lost
    assert asked > 0


def test_a_step_that_fails_takes_nothing_from_what_it_was_to_store() -> None:
    allocator, tokens = PagedAllocator(2, 4), tuple(range(8))
    scheduler = Scheduler(allocator, BatchLimits(1, 8))
    names = hash_blocks(b"", tokens, 4)
    allocator.admit(0, Demand(8, names))
    allocator.append({0: 8})
    allocator.commit(0, names, 2)
    move = BlockMove(MoveKind.STORE, 0, OUTSIDE, 0, Content(names[0], tokens[:4]))
    scheduler.invalidate(Step([move]))
    assert [allocator.locate(name) for name in names] == [(0,), (1,)]


def test_a_state_has_the_name_of_its_depth_where_it_is_stored_and_fetched() -> None:
    """A prompt goes on from the deepest one that there is; those of answers are not stored."""
    tokens = range(16)

    def memory() -> tuple[LayeredAllocator, Sequence]:
        states = StateAllocator(3, 4, 0, KeptState(every=4, decoding=4, drafts=0))
        branch = Sequence(0, 0, tokens)
        branch.hash_blocks(4)
        return LayeredAllocator(4, [PagedAllocator(8, 4)], states), branch

    source, (allocator, branch) = FakeSource(0, forgets=0.0), memory()
    branch.num_prompt_tokens = 12
    offloading = Offloading(source, allocator, allocator, RecoveryCosts())
    names = branch.block_hashes
    allocator.admit(0, Demand(12, names[:3]))
    stored = []
    for end in (2, 3, 4):  # chunks of 8, 4 and 4 tokens
        allocator.append({0: 8 if end == 2 else 4})
        allocator.commit(0, names, end)
        offloading.fill(branch, end - 1 - (end == 2), end)
        allocator.settle()
        for move in offloading.store():
            source.keep(move, [end])
            stored += [move.content.name] if move.kv_group == 1 and move.content else []
    assert stored == [name_of_state(names[1]), name_of_state(names[2])]

    allocator, branch = memory()
    offloading = Offloading(source, allocator, allocator, RecoveryCosts(0.0, 1.0))
    group = SimpleNamespace(may_fetch=True)
    demand = offloading.widen(group, Demand(16, names))  # type: ignore[arg-type]
    assert allocator.admit(0, demand) == 12
    *blocks, state = offloading.admitted(branch, 12)
    assert [move.content and move.content.name for move in blocks] == names[:3]
    assert state.content == Content(name_of_state(names[2]), tuple(tokens[8:12]))
    assert source.find(state) == [3], "what was there at that depth"


def test_what_is_noted_of_a_growing_text_does_not_grow_with_it() -> None:
    """Each block that a step fills says that all before it are in use; not all of them each time.

    Still no source that holds a few more than a text lets its beginning go.
    """
    size, blocks = 4, 1024
    source, allocator = FakeSource(0, forgets=0.0), PagedAllocator(8, size)
    noted: list[list[bytes]] = []
    source.used = lambda names: noted.append(list(names))  # type: ignore[method-assign]
    kept = dict[bytes, None]()
    offloading = Offloading(source, allocator, allocator, RecoveryCosts())
    branch = Sequence(5, 0, range(size * blocks))
    branch.hash_blocks(size)
    offloading.fill(branch, 0, 256)
    for number in range(256, blocks):
        for _ in range(size - 1):  # steps that fill none
            offloading.store()
            offloading.fill(branch, number, number)
        offloading.store()
        offloading.fill(branch, number, number + 1)
    offloading.store()
    for names in noted:
        for name in names:
            kept.pop(name, None)
            kept[name] = None
            if len(kept) > blocks - blocks // 16:
                del kept[next(iter(kept))]
    assert all(name in kept for name in branch.block_hashes[: blocks // 2])
    assert sum(map(len, noted)) < 64 * blocks
