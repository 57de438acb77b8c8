"""Which blocks a window leaves behind, and several pools behind one allocator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.memory import (
    BlockMove,
    Demand,
    LayeredAllocator,
    MoveKind,
    PagedAllocator,
    When,
    Window,
    hash_blocks,
    root_hash,
)
from quire_lab.contiguous.allocator import ContiguousAllocator, Reservation


@pytest.mark.parametrize(
    ("window", "dropped_before"),
    [
        # In blocks of four, the first position whose token does not see blocks 0, 1 and 2.
        (1, (4, 8, 12)),  # sees itself: block 0 is left behind once position 4 is next
        (4, (7, 11, 15)),  # position 7 sees 4 to 7
        (5, (8, 12, 16)),  # position 7 sees 3 to 7, position 8 sees 4 to 8
    ],
)
def test_which_block_is_dropped_at_which_append(
    window: int, dropped_before: tuple[int, ...]
) -> None:
    allocator = PagedAllocator(8, 4, window=Window(window, 1))
    assert allocator.admit(0, Demand(1)) == 0
    for position in range(16):
        assert allocator.append({0: 1}) == []
        table = allocator.table(0)
        assert table.num_dropped == sum(position >= first for first in dropped_before)
        assert table.num_dropped + len(table.block_ids) == max(position // 4 + 1, 1)
        assert allocator.num_free_blocks == 8 - len(table.block_ids)


def test_a_chunk_is_dropped_when_the_next_begins() -> None:
    """Chunks of 6 in blocks of 4: block 1 has tokens of two."""
    allocator = PagedAllocator(8, 4, window=Window(6, 1, by_chunks=True))
    assert allocator.admit(0, Demand(1)) == 0
    for position in range(19):
        assert allocator.append({0: 1}) == []
        dropped = allocator.table(0).num_dropped
        assert dropped == position // 6 * 6 // 4, position  # 6: 1, 12: 3, 18: 4
        assert len(allocator.table(0).block_ids) == position // 4 + 1 - dropped


@pytest.mark.parametrize("by_chunks", [False, True])
@pytest.mark.parametrize("tokens", [1, 4, 5, 6, 16, 17])
def test_a_window_says_when_it_leaves_the_next_block_behind(tokens: int, by_chunks: bool) -> None:
    window = Window(tokens, 1, by_chunks=by_chunks)
    for left in range(12):
        first = next(n for n in range(400) if window.left_behind(n, 4) > left)
        assert window.leaves_at(left, 4) == first


def test_a_hit_needs_what_the_next_token_sees_of_its_chunk() -> None:
    names = hash_blocks(root_hash(None), range(24), 4)
    window = Window(8, 1, by_chunks=True)
    blocks = {name: number for number, name in enumerate(names)}

    def found(*missing: int, computed: int = 24) -> tuple[int, list[int]]:
        there = {name: block for name, block in blocks.items() if block not in missing}
        return window.find(names, 6, computed, there.get, 4)

    assert found() == (5, [5])  # token 24 begins a chunk, and sees none of them
    assert found(computed=23) == (4, [4, 5])
    assert found(5) == (4, [4])
    assert found(5, 4) == (3, [3])
    assert found(3, 5, 4) == (2, [2])


@pytest.mark.parametrize(
    ("sinks", "kept"),
    [
        # Before position 21 of a window of 5: 21 sees 17 to 21, which are in blocks 4 and 5.
        (0, [4, 5]),
        (1, [0, 4, 5]),
        (4, [0, 4, 5]),
        (5, [0, 1, 4, 5]),
        (16, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_the_blocks_of_attention_sinks_are_kept(sinks: int, kept: list[int]) -> None:
    allocator = PagedAllocator(8, 4, window=Window(5, 4, sinks))
    assert allocator.admit(0, Demand(1)) == 0
    blocks = {}
    for position in range(22):
        assert allocator.append({0: 1}) == []
        blocks[position // 4] = allocator.table(0).block_ids[-1]
    table = allocator.table(0)
    assert table.block_ids == tuple(blocks[logical] for logical in kept)
    assert (table.num_dropped, table.num_sink_blocks) == (6 - len(kept), -(-sinks // 4))
    assert allocator.num_free_blocks == 8 - len(kept)
    for position in range(22):
        if position // 4 in kept:
            assert table.slot(position) == blocks[position // 4] * 4 + position % 4
        else:
            with pytest.raises(IndexError, match=f"block {position // 4} has been given back"):
                table.slot(position)
    for position in (-1, 24):
        with pytest.raises(IndexError, match="is none of this table's: it ends before block 6"):
            table.slot(position)


def test_where_a_position_is_in_contiguous_memory_and_in_each_kv_group() -> None:
    region = ContiguousAllocator(8, 4, Reservation.MAX, 16)
    windowed = LayeredAllocator(
        4, [PagedAllocator(8, 4), PagedAllocator(8, 4, window=Window(5, 4))]
    )
    for allocator in (region, windowed):
        assert allocator.admit(0, Demand(1, longest=16)) == 0
        for _ in range(10):
            assert allocator.append({0: 1}) == []
    assert [region.table(0).slot(position) for position in (0, 9, 15)] == [0, 9, 15]
    whole, left = windowed.table(0).kv_groups
    assert (whole.slot(1), left.slot(9)) == (whole.block_ids[0] * 4 + 1, left.block_ids[-1] * 4 + 1)
    with pytest.raises(IndexError, match="no later token sees it"):
        left.slot(1)


@given(
    st.integers(1, 20),
    st.integers(-1, 9),
    st.integers(1, 5),
    st.lists(st.integers(1, 12), min_size=1, max_size=40),
)
def test_a_sequence_never_holds_more_than_was_said(
    window: int, sinks: int, size: int, steps: list[int]
) -> None:
    seen = Window(window, max(steps), max(sinks, 0), by_chunks=sinks < 0)
    demand = Demand(sum(steps))
    most = seen.most_held([-(-sum(steps) // size)], size)
    allocator = PagedAllocator(most, size, window=seen)
    assert allocator.fit(demand).when is When.NOW
    assert allocator.admit(0, demand) == 0
    for count in steps:
        assert allocator.append({0: count}) == [], "alone in such a pool, it can always grow"
        assert allocator.usage().internal >= 0


def test_a_long_prompt_reserves_its_window_and_a_step() -> None:
    allocator = PagedAllocator(9, 4, window=Window(8, 8))
    assert allocator.fit(Demand(1000)).needed == 5  # 7 old tokens and 8 new ones, anywhere
    assert PagedAllocator(4, 4, window=Window(8, 8)).fit(Demand(1000)).when is When.NEVER
    assert allocator.admit(0, Demand(1000)) == 0
    assert len(allocator.table(0).block_ids) == 5
    assert allocator.fit(Demand(1000)).when is When.LATER


def test_who_waits_for_others_of_its_group_gives_back_what_it_cannot_see() -> None:
    allocator = PagedAllocator(12, 2, window=Window(1, 8))
    assert allocator.admit(0, Demand(9)) == 0
    allocator.append({0: 9})
    allocator.fork(0, 1)
    allocator.append({0: 7})
    held = []
    for group in ((), (0, 1)):
        assert allocator.append({1: 1}, group) is not None
        held.append(len(allocator.table(0).block_ids))
    assert held == [4, 0]


def test_a_hit_needs_only_the_last_window() -> None:
    tokens = list(range(24))
    hashes = hash_blocks(b"", tokens, 4)
    allocator = PagedAllocator(6, 4, window=Window(5, 24))
    assert allocator.admit(0, Demand(24, hashes)) == 0
    allocator.append({0: 24})
    allocator.commit(0, hashes, len(hashes))
    allocator.settle()
    allocator.free(0)
    # The tail went first, so that the blocks which are taken now are the last two.
    assert allocator.admit(1, Demand(8)) == 0
    demand = Demand(25, hashes)
    fit = allocator.fit(demand)
    assert (fit.cached, fit.evicted) == (16, 8)
    assert allocator.admit(2, demand) == 16
    # Position 16 sees 12 to 16: only block 3 of the four.
    assert allocator.table(2).num_dropped == 3


def test_a_hit_needs_the_sinks_too() -> None:
    hashes = hash_blocks(b"", list(range(24)), 4)
    allocator = PagedAllocator(6, 4, window=Window(5, 24, sinks=6))
    assert allocator.admit(0, Demand(24, hashes)) == 0
    allocator.append({0: 24})
    allocator.commit(0, hashes, len(hashes))
    allocator.settle()
    second = allocator.table(0).block_ids[1]
    allocator.free(0)
    assert allocator.admit(1, Demand(25, hashes)) == 24
    # Position 24 sees 20 to 24: block 5; and sinks in blocks 0 and 1.
    assert (allocator.table(1).num_dropped, len(allocator.table(1).block_ids)) == (3, 4)
    allocator.free(1)
    allocator.device.invalidate(second)
    assert allocator.fit(Demand(25, hashes)).cached == 4, "only the beginning of the sinks"


def layered(full: int, windowed: int, host: tuple[int, int] = (0, 0)) -> LayeredAllocator:
    return LayeredAllocator(
        4,
        [
            PagedAllocator(full, 4, host[0]),
            PagedAllocator(windowed, 4, host[1], Window(4, 8)),
        ],
    )


def state(allocator: LayeredAllocator) -> list[object]:
    return [
        (kv_group.usage(), kv_group.num_free_blocks, kv_group.host.num_free)
        for kv_group in allocator.kv_groups
    ]


def test_a_table_has_the_tables_of_further_kv_groups() -> None:
    allocator = layered(8, 8)
    allocator.admit(0, Demand(4))
    for _ in range(9):
        allocator.append({0: 1})
    first, second = allocator.table(0).kv_groups
    assert (first.num_dropped, len(first.block_ids)) == (0, 3)
    assert (second.num_dropped, len(second.block_ids)) == (1, 2)
    assert allocator.blocks_held([0]) == (5, 0)
    assert allocator.usage().used == 9 + 5


def test_each_kv_group_tells_which_of_its_blocks_are_cached() -> None:
    allocator = layered(8, 8)
    hashes = hash_blocks(root_hash("salt"), range(8), 4)
    allocator.admit(0, Demand(8, hashes))
    allocator.commit(0, hashes, 2)
    allocator.settle()
    assert not any(view.cached_blocks() for view in allocator.views())
    tables = allocator.table(0).kv_groups
    allocator.free(0)
    for view, table in zip(allocator.views(), tables, strict=True):
        assert sorted(view.cached_blocks()) == sorted(table.block_ids)


@pytest.mark.parametrize(("full", "windowed"), [(2, 8), (8, 2)])
def test_no_kv_group_changes_unless_all_can(full: int, windowed: int) -> None:
    allocator = layered(full, windowed)
    assert allocator.admit(0, Demand(8)) == 0
    before = state(allocator)
    assert allocator.fit(Demand(4)).when is When.LATER
    assert allocator.admit(1, Demand(4)) is None
    assert state(allocator) == before
    assert allocator.append({0: 8}) == []
    before = state(allocator)
    allocator.fork(0, 1)
    assert allocator.append({0: 8, 1: 8}) is None
    # What no token sees any more is gone, and nothing else: here both still hold block 1.
    assert [len(table.block_ids) for table in allocator.table(1).kv_groups] == [2, 1]
    allocator.free(1)
    allocator.free(0)
    assert allocator.usage().free == allocator.usage().capacity


@pytest.mark.parametrize("host", [(2, 0), (0, 2)])
def test_no_kv_group_swaps_unless_all_can(host: tuple[int, int]) -> None:
    allocator = layered(4, 4, host)
    allocator.admit(0, Demand(4))
    allocator.append({0: 4})
    before = state(allocator)
    assert allocator.swap_out([0]) is None
    assert state(allocator) == before


def test_moves_name_their_kv_group() -> None:
    allocator = layered(4, 4, (2, 2))
    allocator.admit(0, Demand(3))
    allocator.append({0: 3})
    allocator.fork(0, 1)
    moves = allocator.append({0: 1, 1: 1})
    assert moves == [BlockMove(MoveKind.COPY, 0, 1, kv_group) for kv_group in (0, 1)]
    allocator.free(1)
    out = allocator.swap_out([0])
    assert out is not None and [(m.kind, m.kv_group) for m in out] == [
        (MoveKind.SWAP_OUT, 0),
        (MoveKind.SWAP_OUT, 1),
    ]
    before = state(allocator)
    assert allocator.swap_in([0], headroom=4) is None
    assert state(allocator) == before
    back = allocator.swap_in([0])
    assert back is not None and [move.kv_group for move in back] == [0, 1]


def test_kv_groups_agree_on_what_is_cached() -> None:
    """A shorter beginning ends in another window, which the windowed KV group must still have."""
    tokens = list(range(16))
    hashes = hash_blocks(b"", tokens, 4)
    allocator = layered(5, 8)
    assert allocator.admit(0, Demand(16, hashes)) == 0
    for _ in range(2):
        allocator.append({0: 8})
        done = allocator.num_tokens(0) // 4
        allocator.commit(0, hashes, done)
        allocator.settle()
    allocator.free(0)
    assert allocator.admit(1, Demand(8)) == 0  # takes block 3 of the full KV group only
    demand = Demand(17, hashes)
    assert [kv_group.fit(demand).cached for kv_group in allocator.kv_groups] == [12, 16]
    fit = allocator.fit(demand)
    assert (fit.cached, fit.evicted) == (12, 4)
    allocator.free(1)
    assert allocator.admit(2, demand) == 12
    assert [table.num_dropped for table in allocator.table(2).kv_groups] == [0, 2]
