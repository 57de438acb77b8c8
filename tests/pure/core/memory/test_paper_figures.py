"""The block tables of the PagedAttention paper's figures, literally (blocks of four tokens)."""

from __future__ import annotations

from quire.core.memory import BlockMove, Demand, MoveKind, PagedAllocator


def admit(allocator: PagedAllocator, seq_id: int, tokens: int) -> None:
    """Admit a sequence and compute its whole prompt."""
    assert allocator.admit(seq_id, Demand(tokens)) == 0
    assert allocator.append({seq_id: tokens}) == []


def blocks(allocator: PagedAllocator, seq_id: int) -> tuple[int, ...]:
    return allocator.table(seq_id).block_ids


def test_figure_6_a_sequence_takes_blocks_as_it_grows() -> None:
    allocator = PagedAllocator(num_blocks=9, block_size=4)
    admit(allocator, 0, 7)  # "Four score and seven years ago our"
    assert blocks(allocator, 0) == (0, 1)
    allocator.append({0: 1})  # "fathers" fills the last slot
    assert blocks(allocator, 0) == (0, 1)
    allocator.append({0: 1})  # "brought" needs a block
    assert blocks(allocator, 0) == (0, 1, 2)
    assert allocator.usage()._asdict() == {
        "used": 9, "reserved": 0, "internal": 3, "external": 0, "cached": 0, "free": 24,
    }  # fmt: skip


def test_figure_7_two_requests_interleave_in_physical_memory() -> None:
    allocator = PagedAllocator(num_blocks=9, block_size=4)
    admit(allocator, 0, 7)
    admit(allocator, 1, 4)  # "It was the best"
    allocator.append({0: 2})
    allocator.append({1: 1})
    assert blocks(allocator, 0) == (0, 1, 3)
    assert blocks(allocator, 1) == (2, 4)


def test_figure_8_parallel_samples_copy_the_shared_last_block_once() -> None:
    allocator = PagedAllocator(num_blocks=9, block_size=4)
    admit(allocator, 0, 7)
    allocator.fork(0, 1)
    assert blocks(allocator, 0) == blocks(allocator, 1) == (0, 1)
    assert allocator.blocks_to_append({0: 1, 1: 1}) == 1
    assert allocator.append({0: 1, 1: 1}) == [BlockMove(MoveKind.COPY, 1, 2)]
    # The first writer copies; the last owner writes in place.
    assert blocks(allocator, 0) == (0, 2)
    assert blocks(allocator, 1) == (0, 1)
    assert allocator.device.ref_counts[:3] == [2, 1, 1]


def test_figure_9_beams_share_a_tree_and_the_dead_free_theirs() -> None:
    allocator = PagedAllocator(num_blocks=16, block_size=4)
    admit(allocator, 0, 4)  # block 0, shared by all candidates
    for beam in (1, 2, 3):
        allocator.fork(0, beam)
    assert allocator.append(dict.fromkeys(range(4), 4)) == []
    tables = [blocks(allocator, beam) for beam in range(4)]
    assert tables == [(0, 1), (0, 2), (0, 3), (0, 4)]
    # The next candidates all come from beams 1 and 2; beams 0 and 3 die.
    allocator.fork(1, 4)
    allocator.fork(2, 5)
    allocator.free(0)
    allocator.free(3)
    assert allocator.device.ref_counts[:5] == [4, 0, 2, 2, 0]
    assert allocator.append({1: 1, 2: 1, 4: 1, 5: 1}) == []  # full blocks: nothing to copy
    assert len({blocks(allocator, beam)[2] for beam in (1, 2, 4, 5)}) == 4
    for beam in (1, 2, 4, 5):
        allocator.free(beam)
    assert allocator.usage().free == 64


def test_a_prefix_hit_leaves_one_token_to_compute() -> None:
    allocator = PagedAllocator(num_blocks=8, block_size=4)
    hashes = [b"a", b"b"]
    admit(allocator, 0, 8)
    allocator.commit(0, hashes, len(hashes))
    allocator.free(0)
    assert allocator.usage().cached == 8
    assert allocator.admit(1, Demand(8, hashes)) == 4
    assert allocator.admit(2, Demand(9, hashes)) == 8


def test_eviction_takes_the_longest_unused_tail_first() -> None:
    allocator = PagedAllocator(num_blocks=4, block_size=1)
    for seq_id, hashes in ((0, [b"a", b"ab"]), (1, [b"x", b"xy"])):
        admit(allocator, seq_id, 2)
        allocator.commit(seq_id, hashes, len(hashes))
        allocator.free(seq_id)
    admit(allocator, 2, 1)
    found = [allocator.device.find(h) is not None for h in (b"a", b"ab", b"x", b"xy")]
    assert found == [True, False, True, True]


def test_a_prompt_that_is_wholly_cached_has_lost_nothing_to_eviction() -> None:
    allocator = PagedAllocator(num_blocks=8, block_size=4)
    hashes = [b"a", b"b"]
    admit(allocator, 0, 8)
    allocator.commit(0, hashes, 2)
    allocator.settle()
    fit = allocator.fit(Demand(8, hashes))
    assert (fit.cached, fit.evicted) == (7, 0)
