"""PagedAllocator, the block manager of PagedAttention (Kwon et al., SOSP 2023, section 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from quire.memory.allocator import BlockTable, Demand, Fit, Usage, When
from quire.memory.blocks import BlockHash, BlockMove, MoveKind
from quire.memory.pool import BlockPool


class _Table:
    """One sequence's blocks, on the device or (swapped out) on the host."""

    __slots__ = (
        "blocks", "charge", "entries", "num_published", "num_tokens", "promised", "swapped", "view"
    )  # fmt: skip

    def __init__(self, num_tokens: int, promised: int) -> None:
        self.blocks: list[int] = []
        self.entries: list[float] = []  # BlockPool.charged of each block when it was acquired
        self.charge = 0.0  # block-seconds, for blocks that have been given back
        self.num_tokens = num_tokens
        self.promised = promised  # tokens that admission reserved room for
        self.num_published = 0
        self.swapped = False
        self.view: tuple[int, ...] | None = None  # of blocks; None once they have changed

    @property
    def reserved(self) -> int:
        """Slots that wait for promised tokens."""
        return max(0, self.promised - self.num_tokens)


class PagedAllocator:
    """Fixed-size blocks anywhere in memory, allocated on demand, shared by reference count.

    A block is copied when a sequence is about to write into it while others hold it too. Full
    blocks are found again by content (prefix caching) for as long as nobody needed their memory.
    """

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        if num_blocks < 1 or block_size < 1 or num_host_blocks < 0:
            raise ValueError(
                "num_blocks and block_size must be at least 1, num_host_blocks at least 0; got "
                f"{num_blocks}, {block_size}, {num_host_blocks}"
            )
        self.block_size = block_size
        self.device = BlockPool(num_blocks)
        self.host = BlockPool(num_host_blocks)
        self._tables: dict[int, _Table] = {}
        self._filled = [0] * num_blocks  # slots of each device block that hold a token
        self._unsettled: set[int] = set()  # published, and computed by the step under way
        self._used = 0  # the sum of _filled over held blocks
        self._reserved = 0  # the sum of _Table.reserved over tables on the device

    @property
    def num_free_blocks(self) -> int:
        return self.device.num_free

    def advance(self, now: float) -> None:
        self.device.now = now

    def fit(self, demand: Demand) -> Fit:
        return self._fit(demand, self._hits(demand))

    def _fit(self, demand: Demand, hits: list[int]) -> Fit:
        fresh = self._blocks_for(demand.num_tokens)
        for shared, total in demand.forks:
            fresh += self._blocks_for(total) - shared // self.block_size
        cached = _cached_tokens(demand, hits, self.block_size)
        if cached % self.block_size and self.device.ref_counts[hits[-1]]:
            fresh += 1  # others hold the block that the next token goes into: it will be copied
        # A hit on a held block costs nothing; on a cached one it takes that block off the free.
        free_hits = sum(1 for block in hits if not self.device.ref_counts[block])
        needed = fresh - len(hits) + free_hits + demand.headroom
        free, capacity = self.device.num_free, self.device.num_blocks
        when = When.NOW if needed <= free else When.LATER
        if fresh > capacity:
            when = When.NEVER
        return Fit(when, needed, free, capacity, cached, self._evicted_tokens(demand, len(hits)))

    def admit(self, seq_id: int, demand: Demand) -> int | None:
        self._refuse_known(seq_id)
        hits = self._hits(demand)
        if self._fit(demand, hits).when is not When.NOW:
            return None
        num_cached = _cached_tokens(demand, hits, self.block_size)
        table = _Table(num_cached, demand.num_tokens)
        table.num_published = len(hits)
        self._revive(hits)
        table.blocks = hits  # shared before any take(), which could evict them
        table.entries = self.device.share_all(hits)
        for _ in range(self._blocks_for(demand.num_tokens) - len(hits)):
            self._acquire(table, self.device.take())
        self._tables[seq_id] = table
        self._reserved += table.reserved
        return num_cached

    def blocks_to_append(self, wants: Mapping[int, int]) -> int:
        size, tables, ref_counts = self.block_size, self._tables, self.device.ref_counts
        growth = 0
        writers: Counter[int] = Counter()  # shared block -> sharers about to write into it
        for seq_id, count in wants.items():
            table = tables[seq_id]
            first = table.num_tokens
            growth += max(0, -(-(first + count) // size) - len(table.blocks))
            if first % size and ref_counts[table.blocks[first // size]] > 1:
                writers[table.blocks[first // size]] += 1
        # Of k writers among r owners all copy, except the last if nobody else holds the block.
        return growth + sum(min(k, ref_counts[block] - 1) for block, k in writers.items())

    def append(self, wants: Mapping[int, int]) -> list[BlockMove] | None:
        if len(wants) == 1 and self._append_in_place(wants):
            return []
        if self.blocks_to_append(wants) > self.device.num_free:
            return None
        size, ref_counts = self.block_size, self.device.ref_counts
        moves: list[BlockMove] = []
        for seq_id, count in wants.items():
            table = self._tables[seq_id]
            first = table.num_tokens
            if first % size and ref_counts[table.blocks[first // size]] > 1:
                moves.append(self._copy_on_write(table, first // size, first % size))
            self._write(table, count)
        return moves

    def fork(self, parent_id: int, child_id: int) -> list[BlockMove]:
        # Allocates nothing, so it cannot run out.
        self._refuse_known(child_id)
        parent = self._tables[parent_id]
        child = _Table(parent.num_tokens, parent.num_tokens)
        child.num_published, child.swapped = parent.num_published, parent.swapped
        child.blocks = parent.blocks[: self._blocks_for(parent.num_tokens)]
        entries = (self.host if parent.swapped else self.device).share_all(child.blocks)
        child.entries = [] if parent.swapped else entries
        self._tables[child_id] = child
        return []

    def commit(self, seq_id: int, block_hashes: Sequence[BlockHash]) -> None:
        table = self._tables[seq_id]
        for i in range(table.num_published, len(block_hashes)):
            self.device.publish(table.blocks[i], block_hashes[i])
            self._unsettled.add(table.blocks[i])
        table.num_published = max(table.num_published, len(block_hashes))

    def settle(self) -> None:
        self._unsettled.clear()

    def free(self, seq_id: int, *, spoiled: bool = False) -> float:
        table = self._tables.pop(seq_id)
        if spoiled and not table.swapped:
            for block in table.blocks:
                self.device.withdraw(block)
        if table.swapped:
            for block in table.blocks:
                self.host.release(block)
        else:
            self._leave_device(table)
        return table.charge

    def swap_out(self, seq_ids: Iterable[int]) -> list[BlockMove] | None:
        tables = [self._tables[seq_id] for seq_id in seq_ids]
        filled = [table.blocks[: self._blocks_for(table.num_tokens)] for table in tables]
        distinct = list(dict.fromkeys(block for blocks in filled for block in blocks))
        if len(distinct) > self.host.num_free:
            return None
        target = {block: self.host.take() for block in distinct}
        for block in distinct:
            content = self.device.content(block)
            if content is not None:
                self.host.publish(target[block], content)
        seen: set[int] = set()
        for table, blocks in zip(tables, filled, strict=True):
            for block in blocks:
                if block in seen:  # the first owner's reference came with take()
                    self.host.share(target[block])
                seen.add(block)
            self._leave_device(table)
            table.blocks = [target[block] for block in blocks]
            table.swapped, table.view = True, None
        return [BlockMove(MoveKind.SWAP_OUT, block, target[block]) for block in distinct]

    def swap_in(self, seq_ids: Iterable[int], headroom: int = 0) -> list[BlockMove] | None:
        tables = [self._tables[seq_id] for seq_id in seq_ids]
        distinct = list(dict.fromkeys(block for table in tables for block in table.blocks))
        target = self._still_on_device(distinct)
        free_hits = sum(1 for block in target.values() if not self.device.ref_counts[block])
        tails = [max(0, self._blocks_for(t.promised) - len(t.blocks)) for t in tables]
        needed = len(distinct) - len(target) + free_hits + sum(tails) + headroom
        if needed > self.device.num_free:
            return None
        self._revive(target.values())
        self.device.share_all(list(target.values()))  # before any take(), which could evict them
        moves = []
        for block in distinct:
            if block not in target:
                target[block] = self._restore(block)
                moves.append(BlockMove(MoveKind.SWAP_IN, block, target[block]))
        seen: set[int] = set()
        for table, tail in zip(tables, tails, strict=True):
            host_blocks, table.blocks = table.blocks, []
            for block in host_blocks:
                if block in seen:  # the first owner's reference is the one taken above
                    self.device.share(target[block])
                seen.add(block)
                self.host.release(block)
                self._acquire(table, target[block])
            for _ in range(tail):
                self._acquire(table, self.device.take())
            table.swapped = False
            self._fill(table, 0)
            self._reserved += table.reserved
        return moves

    def table(self, seq_id: int) -> BlockTable:
        table = self._tables[seq_id]
        if table.view is None:
            table.view = tuple(table.blocks)
        return BlockTable(table.view, table.num_tokens)

    def blocks_held(self, seq_ids: Sequence[int]) -> tuple[int, int]:
        if len(seq_ids) == 1:
            table = self._tables[seq_ids[0]]
            return (0, 0) if table.swapped else (len(table.blocks), 0)
        tables = [self._tables[seq_id] for seq_id in seq_ids]
        held = [table.blocks for table in tables if not table.swapped]
        distinct = len(set().union(*held))
        return distinct, sum(map(len, held)) - distinct

    def usage(self) -> Usage:
        size, pool = self.block_size, self.device
        held = pool.num_held * size
        cached = pool.num_cached * size
        return Usage(
            used=self._used,
            reserved=self._reserved,
            internal=held - self._used - self._reserved,
            external=0,
            cached=cached,
            free=pool.num_blocks * size - held - cached,
        )

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _hits(self, demand: Demand) -> list[int]:
        """Blocks that hold the demand's beginning, the last one perhaps but for its last token."""
        most = self._blocks_for(demand.num_tokens - 1)  # one token is left to compute
        hits: list[int] = []
        for content in islice(demand.block_hashes, most):
            block = self.device.find(content)
            if block is None:
                break
            hits.append(block)
        # A copy on write is made before the step that computes an unsettled block.
        if len(hits) * self.block_size >= demand.num_tokens and hits[-1] in self._unsettled:
            hits.pop()
        return hits

    def _evicted_tokens(self, demand: Demand, hits: int) -> int:
        """Tokens after the hits that were cached until their blocks were needed."""
        count = 0
        for content in islice(demand.block_hashes, hits, None):
            if not self.device.was_evicted(content) and self.device.find(content) is None:
                break
            count += 1
        return min(count * self.block_size, demand.num_tokens - 1 - hits * self.block_size)

    def _acquire(self, table: _Table, block: int) -> None:
        """Put a block that has been taken or shared at the end of a table."""
        table.blocks.append(block)
        table.entries.append(self.device.charged(block))
        table.view = None

    def _leave_device(self, table: _Table) -> None:
        """Release a table's blocks and settle what its sequence owes for them.

        Tail first: a prefix is useful without its tail, a tail never without its prefix.
        """
        self._reserved -= table.reserved
        for block, entry in zip(reversed(table.blocks), reversed(table.entries), strict=True):
            table.charge += self.device.charged(block) - entry
            self._release(block)
        table.entries = []

    def _copy_on_write(self, table: _Table, index: int, offset: int) -> BlockMove:
        source, target = table.blocks[index], self.device.take()
        self._filled[target] = offset
        self._used += offset
        table.charge += self.device.charged(source) - table.entries[index]
        self._release(source)
        table.blocks[index], table.entries[index] = target, self.device.charged(target)
        table.view = None
        return BlockMove(MoveKind.COPY, source, target)

    def _write(self, table: _Table, count: int) -> None:
        """Fill ``count`` slots after the last token, taking blocks as they run out."""
        first = table.num_tokens
        for _ in range(self._blocks_for(first + count) - len(table.blocks)):
            self._acquire(table, self.device.take())
        self._reserved -= min(count, table.reserved)
        table.num_tokens = first + count
        self._fill(table, first // self.block_size)

    def _append_in_place(self, wants: Mapping[int, int]) -> bool:
        """One more token of one sequence, into a block of its own that has room: most appends."""
        ((seq_id, count),) = wants.items()
        table = self._tables[seq_id]
        index, offset = divmod(table.num_tokens, self.block_size)
        if count != 1 or not offset:
            return False
        block = table.blocks[index]
        if self.device.ref_counts[block] != 1:
            return False
        if table.promised > table.num_tokens:
            self._reserved -= 1
        table.num_tokens += 1
        if self._filled[block] == offset:
            self._filled[block] += 1
            self._used += 1
        return True

    def _fill(self, table: _Table, first_block: int) -> None:
        """Count the tokens in a table's blocks, once for all the owners of a block."""
        size = self.block_size
        for index in range(first_block, self._blocks_for(table.num_tokens)):
            block = table.blocks[index]
            filled = min(size, table.num_tokens - index * size)
            if filled > self._filled[block]:
                self._used += filled - self._filled[block]
                self._filled[block] = filled

    def _revive(self, blocks: Iterable[int]) -> None:
        """Count the tokens of cached blocks, which are full, as used again."""
        for block in blocks:
            if not self.device.ref_counts[block]:
                self._filled[block] = self.block_size
                self._used += self.block_size

    def _release(self, block: int) -> None:
        if self.device.release(block):
            self._used -= self._filled[block]
            self._filled[block] = 0

    def _still_on_device(self, host_blocks: Iterable[int]) -> dict[int, int]:
        """Of swapped-out blocks, those whose content the device still has: host -> device."""
        found = {}
        for block in host_blocks:
            content = self.host.content(block)
            device_block = None if content is None else self.device.find(content)
            if device_block is not None:
                found[block] = device_block
        return found

    def _restore(self, host_block: int) -> int:
        block = self.device.take()
        content = self.host.content(host_block)
        if content is not None:
            self.device.publish(block, content)
        return block

    def _refuse_known(self, seq_id: int) -> None:
        if seq_id in self._tables:
            raise ValueError(f"sequence {seq_id} already has a block table")


def _cached_tokens(demand: Demand, hits: Sequence[int], block_size: int) -> int:
    return min(len(hits) * block_size, demand.num_tokens - 1)
