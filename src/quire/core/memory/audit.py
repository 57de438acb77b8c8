"""Whether an allocator's books agree with its block tables, and how they are put right.

Nothing here should ever find anything. If something does, a server that has been up for weeks had
rather lose a cached prefix than blocks for good.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from quire.core.memory.allocator import KVAllocator
from quire.core.memory.block_list import BlockList
from quire.core.memory.layered import LayeredAllocator
from quire.core.memory.paged import PagedAllocator
from quire.core.memory.pool import BlockPool


def audit(allocator: KVAllocator, known: Collection[int]) -> list[str]:
    """What was wrong, in words; it no longer is. To be called while no step is under way.

    known: the sequences that have block tables by right; no others keep theirs. Of contiguous
        regions, nothing is looked at.
    """
    kv_groups: Iterable[KVAllocator] = (allocator,)
    if isinstance(allocator, LayeredAllocator):
        kv_groups = allocator.kv_groups
    faults: list[str] = []
    for kv_group in kv_groups:
        if isinstance(kv_group, PagedAllocator):
            faults += _audit_kv_group(kv_group, known)
    return faults


def _audit_kv_group(kv_group: PagedAllocator, known: Collection[int]) -> list[str]:
    faults = []
    tables = kv_group.tables
    for seq_id in [one for one in tables if one not in known]:
        kv_group.free(seq_id)
        faults.append(f"sequence {seq_id} had blocks, and nobody who would free them")
    on_device = [table for table in tables.values() if not table.swapped]
    on_host = [table for table in tables.values() if table.swapped]
    faults += _audit_pool("device", kv_group.device, on_device)
    faults += _audit_pool("host", kv_group.host, on_host)
    if kv_group.occupancy.recount(on_device) or faults:
        faults.append("slots were counted that are not there")
    return faults


def _audit_pool(name: str, pool: BlockPool, tables: Iterable[BlockList]) -> list[str]:
    owners = [0] * pool.num_blocks
    for table in tables:
        for block in table.blocks:
            owners[block] += 1
    wrong = sum(a != b for a, b in zip(owners, pool.ref_counts, strict=True))
    free = owners.count(0)
    faults = []
    if wrong:
        faults.append(f"{wrong} {name} blocks had other reference counts than owners")
    if pool.num_free != free:
        faults.append(f"{pool.num_free} {name} blocks were taken for free, {free} are")
    if faults:
        pool.rebuild(owners)
    return faults
