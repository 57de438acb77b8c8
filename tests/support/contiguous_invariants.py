"""What is true of a ContiguousAllocator between any two calls, checked by brute force."""

from __future__ import annotations

from quire_lab.contiguous.allocator import ContiguousAllocator
from quire_lab.contiguous.buddy import BuddyRegions
from support.invariants import check_pool


def free_regions(num_blocks: int, held: dict[int, int]) -> list[list[int]]:
    """By order, the largest aligned free regions of a pool: what full merging leaves."""
    free = set(range(num_blocks))
    for start, order in held.items():
        free.difference_update(range(start, start + (1 << order)))
    found: list[list[int]] = [[] for _ in range(num_blocks.bit_length())]
    for order in reversed(range(num_blocks.bit_length())):
        for start in range(0, num_blocks, 1 << order):
            region = range(start, start + (1 << order))
            if free.issuperset(region):
                found[order].append(start)
                free.difference_update(region)
    return found


def check_buddy(buddy: BuddyRegions, held: dict[int, int]) -> None:
    """Held regions are aligned, inside and disjoint; free ones are fully merged and sorted."""
    blocks = [b for start, order in held.items() for b in range(start, start + (1 << order))]
    assert len(set(blocks)) == len(blocks) and set(blocks) <= set(range(buddy.num_blocks))
    assert all(start % (1 << order) == 0 for start, order in held.items())
    assert buddy._held == held
    free = free_regions(buddy.num_blocks, held)
    assert buddy._free == free
    assert buddy.num_free == buddy.num_blocks - len(blocks)
    for order in range(buddy.num_blocks.bit_length() + 1):
        larger = sum(len(starts) << k for k, starts in enumerate(free) if k >= order)
        assert buddy.num_available(order) == larger >> order
        assert buddy.num_scattered(order) == buddy.num_free - larger


def check_contiguous(allocator: ContiguousAllocator) -> None:
    """Regions are disjoint, one for each promised branch; usage says what every slot is for."""
    size = allocator.block_size
    branches = allocator.branches
    families = {id(branch.family): branch.family for branch in branches.values()}.values()
    assert {s: b for f in families for s, b in f.branches.items()} == branches
    regions: dict[int, int] = {}
    used = reserved = num_regions = 0
    for family in families:
        slots = size << family.order
        if not family.residents:
            assert not family.spares
            continue
        num_regions += family.terms.width
        assert len(family.residents) + len(family.spares) == family.terms.width
        assert family.num_to_come <= len(family.spares)
        starts = [branch.start for branch in family.residents] + family.spares
        regions.update((start, family.order) for start in starts if start is not None)
        for branch in family.residents:
            assert branch.num_tokens <= min(slots, family.terms.longest)
            used += branch.num_tokens
            reserved += min(slots, family.terms.longest) - branch.num_tokens
        reserved += min(slots, family.terms.longest) * family.num_to_come
    assert len(regions) == num_regions
    check_buddy(allocator.device, regions)
    check_pool(allocator.host, (b for t in branches.values() for b in t.host_blocks))
    usage = allocator.usage()
    assert min(usage) >= 0
    assert (usage.used, usage.reserved, usage.cached) == (used, reserved, 0)
    assert usage.capacity == allocator.device.num_blocks * size
    assert usage.free + usage.external == allocator.num_free_blocks * size
