"""The allocator as people drive it: one call for a prompt, errors that name the sequence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quire.core.memory import Demand, PagedAllocator, Window, hash_blocks, root_hash


def test_a_prompt_is_filled_by_the_call_that_admits_it() -> None:
    once, twice = (PagedAllocator(8, 4) for _ in range(2))
    assert once.admit(0, Demand(7), fill=True) == twice.admit(0, Demand(7)) == 0
    twice.append({0: 7})
    assert once.table(0) == twice.table(0) and once.num_tokens(0) == 7
    assert once.usage() == twice.usage()
    assert once.admit(1, Demand(25), fill=True) is None
    assert once.usage() == twice.usage()


def test_what_is_found_ends_with_a_block_so_that_nothing_is_copied() -> None:
    pool, prompt = PagedAllocator(8, 4), list(range(8))
    names = hash_blocks(root_hash(""), prompt, 4)
    pool.admit(0, Demand(8, names), fill=True)
    pool.commit(0, names, count=2)
    pool.settle()
    assert pool.admit(1, Demand(8, names), fill=True) == 4  # not seven, in a block that is shared
    assert pool.table(1).block_ids[0] == pool.table(0).block_ids[0]
    assert pool.table(1).block_ids[1] != pool.table(0).block_ids[1]
    assert pool.num_tokens(1) == 8
    least = PagedAllocator(8, 4)
    least.admit(0, Demand(8, names, most_cached=0), fill=True)
    assert least.num_tokens(0) == 8


def test_a_prompt_that_a_window_leaves_behind_is_filled_or_nothing_has_changed() -> None:
    window = Window(tokens=4, step_tokens=4)
    pool = PagedAllocator(3, 4, window=window)
    before = pool.usage()
    if pool.admit(0, Demand(40), fill=True) is None:
        assert pool.usage() == before and not pool.tables
    else:
        assert pool.num_tokens(0) == 40


@pytest.mark.parametrize(
    "verb",
    [
        lambda pool: pool.table(5),
        lambda pool: pool.num_tokens(5),
        lambda pool: pool.append({5: 1}),
        lambda pool: pool.append({0: 1, 5: 1}),
        lambda pool: pool.blocks_to_append({5: 1}),
        lambda pool: pool.draft(5, 1),
        lambda pool: pool.trim(5, 1),
        lambda pool: pool.fork(5, 6),
        lambda pool: pool.commit(5, [], 0),
        lambda pool: pool.swap_out([5]),
        lambda pool: pool.swap_in([5]),
        lambda pool: pool.blocks_held([5]),
        lambda pool: pool.charge(5),
        lambda pool: pool.free(5),
    ],
)
def test_a_sequence_that_nobody_admitted_is_named(verb: Callable[[PagedAllocator], object]) -> None:
    pool = PagedAllocator(8, 4, num_host_blocks=4)
    pool.admit(0, Demand(3), fill=True)
    before = pool.usage(), pool.table(0)
    with pytest.raises(KeyError, match="sequence 5 has no block table"):
        verb(pool)
    assert (pool.usage(), pool.table(0)) == before
    with pytest.raises(ValueError, match="sequence 0 already has a block table"):
        pool.admit(0, Demand(3))
