"""What is true of an allocator between any two calls, checked by brute force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from quire.core.memory import (
    LayeredAllocator,
    PagedAllocator,
    SharedPool,
    StateAllocator,
)
from quire.core.memory.keeping import SHARE
from quire.core.memory.layered import GroupAllocator
from quire.core.memory.pool import BlockPool


def check_pool(pool: BlockPool, owned: Iterable[int]) -> None:
    """Reference counts equal table entries; free blocks are exactly the others, each once."""
    owners = [0] * len(pool.ref_counts)
    for block in owned:
        owners[block] += 1
    assert pool.ref_counts == owners
    assert pool._block_of == {h: b for b, h in pool._hashes.items()}
    if isinstance(pool._blank, list):
        free = [*pool._blank, *pool.cached_blocks()]
        assert sorted(free) == [block for block, count in enumerate(owners) if not count]
        assert not any(block in pool._hashes for block in pool._blank)
    assert all(block in pool._hashes for block in pool.cached_blocks())
    assert pool.kept.until.keys() >= pool.kept.free.keys()
    assert len(pool.kept.free) <= pool.num_blocks // SHARE


def _cached(pool: BlockPool) -> list[int]:
    return sorted(block for block in pool._hashes if not pool.ref_counts[block])


def check_allocator(allocator: PagedAllocator) -> None:
    size = allocator.block_size
    tables = allocator.tables.values()
    on_device = [t for t in tables if not t.swapped]
    check_pool(allocator.device, (b for t in on_device for b in t.blocks))
    check_pool(allocator.host, (b for t in tables if t.swapped for b in t.blocks))
    pool = allocator.device
    assert sorted(pool.cached_blocks()) == _cached(pool)
    filled: dict[int, int] = {}
    for table in on_device:
        assert (table.num_dropped + len(table.blocks)) * size >= max(table.num_tokens, 1)
        for index, block in enumerate(table.blocks):
            logical = index if index < table.num_sinks else index + table.num_dropped
            here = max(0, min(size, table.num_tokens - logical * size))
            if allocator.device.content(block) is not None:
                here = size  # found by its content, so full whatever this table uses of it
            filled[block] = max(filled.get(block, 0), here)
    usage = allocator.usage()
    assert min(usage) >= 0
    assert usage.capacity == (pool.num_held + pool.num_free) * size
    assert usage.used == sum(filled.values())
    assert usage.reserved == sum(max(0, t.promised - t.num_tokens) for t in on_device)


def check_states(allocator: StateAllocator) -> None:
    tables = allocator.tables.values()
    check_pool(allocator.device, (t.slot for t in tables if not t.swapped))
    check_pool(allocator.host, (t.slot for t in tables if t.swapped))
    usage, size = allocator.usage(), allocator.block_size
    pool = allocator.device
    if not isinstance(pool, SharedPool):  # of which the slots are those that others leave
        assert usage.capacity == pool.num_blocks * size
    assert min(usage) >= 0 and usage.capacity == (pool.num_held + pool.num_free) * size
    assert usage.used == size * len({t.slot for t in tables if not t.swapped})


def paged(allocator: LayeredAllocator) -> list[PagedAllocator]:
    return [one for one in allocator.kv_groups if isinstance(one, PagedAllocator)]


def pages_held(allocator: LayeredAllocator, units: int) -> list[Counter[int]]:
    """Held blocks by page, of each KV group, as tables have them."""
    held = [set(on_device(one)) for one in allocator.kv_groups]
    return [Counter(block // units for block in own) for own in held]


def on_device(kv_group: GroupAllocator) -> list[int]:
    """The blocks that its tables have, one after the other."""
    blocks: list[int] = []
    if isinstance(kv_group, StateAllocator):
        return [live.slot for live in kv_group.tables.values() if not live.swapped]
    assert isinstance(kv_group, PagedAllocator)
    for table in kv_group.tables.values():
        blocks += () if table.swapped else table.blocks
    return blocks


def check_idle(shared: Sequence[SharedPool]) -> None:
    """Who wants a page is offered one without blocks that callers keep, if there is one."""
    pages = shared[0]._pages
    idle = {**pages._idle, **pages._kept}
    assert len(idle) == len(pages._idle) + len(pages._kept)
    others = {page for page, (_, pool) in idle.items() if not pool.keeps(page)}
    offered = pages.oldest_idle(kept=False)
    assert offered[0] in others if offered else not others
    assert (pages.oldest_idle(kept=True) is None) is not bool(idle)


def check_pages(allocator: LayeredAllocator) -> None:
    """Pages have one owner each; numbers are those that brute force finds."""
    pools = [one.device for one in allocator.kv_groups]
    shared = [pool for pool in pools if isinstance(pool, SharedPool)]
    assert len(shared) == len(pools)
    count, units, *_ = shared[0].part
    held, size = pages_held(allocator, units), allocator.block_size
    assert sum(map(len, held)) == len(set().union(*held)), "two KV groups hold one page"
    busy = sum(map(len, held))
    assert allocator.num_free_blocks == count - busy
    owners: dict[int, int] = {}
    groups = zip(allocator.kv_groups, shared, held, strict=True)
    for number, (one, pool, own) in enumerate(groups):
        span, per_page = pool.part.span, pool.part.per_page
        owners_of = Counter(on_device(one))
        assert pool.ref_counts == [owners_of[block] for block in range(len(pool.ref_counts))]
        busy_blocks = {block for block, refs in enumerate(pool.ref_counts) if refs}
        for block in busy_blocks.union(pool._hashes):
            assert block % units % span == 0 and block % units // span < per_page
            assert owners.setdefault(block // units, number) == number, "two have one page"
        assert pool.num_held == own.total()
        assert pool.num_free == per_page * (count - busy + len(own)) - own.total()
        cached = _cached(pool)
        assert sorted(pool.cached_blocks()) == cached and pool.num_cached == len(cached)
    check_idle(shared)
    usage = allocator.usage()
    assert min(usage) >= 0 and usage.capacity == count * units * size
    padding = (
        size * len(own) * (units % pool.part.span) + pool.part.lost * own.total()
        for own, pool in zip(held, shared, strict=True)
    )
    assert usage.external == sum(padding)
    assert allocator.audit({seq for one in paged(allocator) for seq in one.tables}) == []
