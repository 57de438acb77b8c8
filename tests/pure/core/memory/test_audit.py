"""Books that are wrong are found, said and put right; books that are right are left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quire.core.memory import Demand, LayeredAllocator, PagedAllocator, hash_blocks
from support.invariants import check_allocator


def busy() -> PagedAllocator:
    """Three sequences, one of them swapped out, which share some of their blocks."""
    allocator = PagedAllocator(12, 4, 8)
    tokens = list(range(10))
    hashes = hash_blocks(b"", tokens, 4)
    for seq_id in (1, 2):
        cached = allocator.admit(seq_id, Demand(10, hashes))
        assert cached is not None
        allocator.append({seq_id: 10 - cached})
        allocator.commit(seq_id, hashes, 2)
        allocator.settle()
    allocator.admit(3, Demand(5))
    allocator.append({3: 5})
    allocator.swap_out([3])
    allocator.admit(4, Demand(9, hashes))
    allocator.free(4)
    return allocator


KNOWN = {1, 2, 3}


def test_right_books_are_left_alone() -> None:
    allocator = busy()
    before = allocator.usage()
    assert allocator.audit(KNOWN) == []
    assert allocator.usage() == before
    assert LayeredAllocator(4, [allocator]).audit(KNOWN) == []
    check_allocator(allocator)


def leak_a_block(allocator: PagedAllocator) -> None:
    allocator.device.take()


def count_an_owner_twice(allocator: PagedAllocator) -> None:
    allocator.device.ref_counts[allocator.table(1).block_ids[0]] += 1


def free_a_block_that_is_held(allocator: PagedAllocator) -> None:
    allocator.device.release(allocator.table(1).block_ids[-1])


def lose_a_host_block(allocator: PagedAllocator) -> None:
    allocator.host.take()


def count_a_slot_twice(allocator: PagedAllocator) -> None:
    allocator.occupancy.used += 1


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (leak_a_block, "device blocks had other reference counts"),
        (count_an_owner_twice, "device blocks had other reference counts"),
        (free_a_block_that_is_held, "device blocks were taken for free"),
        (lose_a_host_block, "host blocks had other reference counts"),
        (count_a_slot_twice, "slots were counted"),
    ],
)
def test_wrong_books_are_put_right(break_it: Callable[[PagedAllocator], None], said: str) -> None:
    allocator = busy()
    tables = [allocator.table(seq_id) for seq_id in KNOWN]
    break_it(allocator)
    assert said in " ".join(allocator.audit(KNOWN))
    check_allocator(allocator)
    assert [allocator.table(seq_id) for seq_id in KNOWN] == tables
    assert allocator.audit(KNOWN) == []
    for seq_id in KNOWN:
        allocator.free(seq_id)
    usage = allocator.usage()
    assert usage.cached + usage.free == usage.capacity


def test_blocks_that_nobody_would_free_are_freed() -> None:
    allocator = busy()
    (fault, *_) = allocator.audit({1, 3})
    assert fault == "sequence 2 had blocks, and nobody who would free them"
    check_allocator(allocator)
    assert allocator.audit({1, 3}) == []
