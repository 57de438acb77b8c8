"""What can be found by its content, and where, as blocks change hands."""

from __future__ import annotations

from quire.core.memory import Demand, PagedAllocator, hash_blocks
from quire.core.memory.pool import BlockPool

SIZE = 4


def test_of_two_blocks_with_one_content_the_older_is_found_until_it_is_taken() -> None:
    pool = BlockPool(2)
    older, newer = pool.take(), pool.take()
    pool.publish(older, b"content")
    pool.publish(newer, b"content")
    assert pool.find(b"content") == older
    assert pool.content(newer) is None
    pool.release(newer)
    assert pool.take() == newer and pool.find(b"content") == older, "the newer was never it"
    pool.release(older)
    assert pool.find(b"content") == older, "free, and not taken yet"
    assert pool.take() == older and pool.find(b"content") is None


def test_a_pool_keeps_account_of_blocks_that_somebody_has_had() -> None:
    pool = BlockPool(1_000_000)
    first = [pool.take() for _ in range(5)]
    assert first == [0, 1, 2, 3, 4] and len(pool.ref_counts) < 16
    assert (pool.num_free, pool.num_held) == (999_995, 5)
    pool.release(1)
    pool.release(3)
    assert [pool.take() for _ in range(4)] == [3, 1, 5, 6]
    small = BlockPool(3)
    assert [small.take() for _ in range(3)] == [0, 1, 2]
    assert not small.num_free and len(small.ref_counts) == 3


def test_what_follows_tokens_that_were_taken_back_is_found_by_its_own_name() -> None:
    """Even where what was taken back had been published, which the scheduler never does."""
    allocator = PagedAllocator(4, SIZE)
    wrong, right = [0] * 8, [0, 0, 1, 1, 1, 1, 1, 1]
    allocator.admit(0, Demand(2))
    allocator.append({0: 8})
    allocator.commit(0, hash_blocks(b"", wrong, SIZE), 2)
    allocator.settle()
    allocator.trim(0, 2)
    allocator.append({0: 6})
    names = hash_blocks(b"", right, SIZE)
    allocator.commit(0, names, 2)
    blocks = allocator.table(0).block_ids
    assert [allocator.locate(name) for name in names] == [(block,) for block in blocks]
    assert allocator.locate(hash_blocks(b"", wrong, SIZE)[0]) is None
