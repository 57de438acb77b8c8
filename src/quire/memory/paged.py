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

    __slots__ = ("blocks", "num_published", "num_tokens", "promised", "swapped", "view")

    def __init__(self, blocks: list[int], num_tokens: int, promised: int) -> None:
        self.blocks = blocks
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
        self._used = 0  # the sum of _filled over held blocks
        self._reserved = 0  # the sum of _Table.reserved over tables on the device

    @property
    def num_free_blocks(self) -> int:
        return self.device.num_free

    def fit(self, demand: Demand) -> Fit:
        hits = self._hits(demand)
        fresh = self._blocks_for(demand.num_tokens)
        for shared, total in demand.forks:
            fresh += self._blocks_for(total) - shared // self.block_size
        # A hit on a held block costs nothing; on a cached one it takes that block off the free.
        free_hits = sum(1 for block in hits if not self.device.ref_counts[block])
        needed = fresh - len(hits) + free_hits + demand.headroom
        free, capacity = self.device.num_free, self.device.num_blocks
        if fresh > capacity:
            return Fit(When.NEVER, needed, free, capacity)
        return Fit(When.NOW if needed <= free else When.LATER, needed, free, capacity)

    def admit(self, seq_id: int, demand: Demand) -> int | None:
        self._refuse_known(seq_id)
        if self.fit(demand).when is not When.NOW:
            return None
        blocks = self._hits(demand)
        for block in blocks:  # before any take(), which could evict them
            self._share(block)
        num_cached = len(blocks) * self.block_size
        for _ in range(self._blocks_for(demand.num_tokens) - len(blocks)):
            blocks.append(self.device.take())
        table = _Table(blocks, num_cached, demand.num_tokens)
        table.num_published = num_cached // self.block_size
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
        blocks = parent.blocks[: self._blocks_for(parent.num_tokens)]
        pool = self.host if parent.swapped else self.device
        for block in blocks:
            pool.share(block)
        child = _Table(blocks, parent.num_tokens, parent.num_tokens)
        child.num_published = parent.num_published
        child.swapped = parent.swapped
        self._tables[child_id] = child
        return []

    def commit(self, seq_id: int, block_hashes: Sequence[BlockHash]) -> None:
        table = self._tables[seq_id]
        for i in range(table.num_published, len(block_hashes)):
            self.device.publish(table.blocks[i], block_hashes[i])
        table.num_published = max(table.num_published, len(block_hashes))

    def free(self, seq_id: int) -> None:
        table = self._tables.pop(seq_id)
        # Tail first: a prefix is useful without its tail, a tail never without its prefix.
        if table.swapped:
            for block in reversed(table.blocks):
                self.host.release(block)
        else:
            self._reserved -= table.reserved
            for block in reversed(table.blocks):
                self._release(block)

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
            self._reserved -= table.reserved
            for block in reversed(table.blocks):
                self._release(block)
            table.blocks = [target[block] for block in blocks]
            table.swapped, table.view = True, None
        return [BlockMove(MoveKind.SWAP_OUT, block, target[block]) for block in distinct]

    def swap_in(self, seq_ids: Iterable[int]) -> list[BlockMove] | None:
        tables = [self._tables[seq_id] for seq_id in seq_ids]
        distinct = list(dict.fromkeys(block for table in tables for block in table.blocks))
        adopted = self._still_on_device(distinct)
        resurrected = sum(1 for block in adopted.values() if not self.device.ref_counts[block])
        tails = [self._blocks_for(t.promised) - len(t.blocks) for t in tables]
        promised = sum(max(0, tail) for tail in tails)
        if len(distinct) - len(adopted) + resurrected + promised > self.device.num_free:
            return None
        target = dict(adopted)
        for block in adopted.values():  # one reference each, handed to the first owner below
            self._share(block)
        moves = []
        for block in distinct:
            if block not in target:
                target[block] = self._restore(block)
                moves.append(BlockMove(MoveKind.SWAP_IN, block, target[block]))
        seen: set[int] = set()
        for table, tail in zip(tables, tails, strict=True):
            host_blocks = table.blocks
            table.blocks = [target[block] for block in host_blocks]
            for block in host_blocks:
                if block in seen:
                    self.device.share(target[block])
                seen.add(block)
                self.host.release(block)
            self._set_filled(table)
            table.blocks += [self.device.take() for _ in range(tail)]
            table.swapped, table.view = False, None
            self._reserved += table.reserved
        return moves

    def table(self, seq_id: int) -> BlockTable:
        table = self._tables[seq_id]
        if table.view is None:
            table.view = tuple(table.blocks)
        return BlockTable(table.view, table.num_tokens)

    def blocks_held(self, seq_ids: Sequence[int]) -> int:
        if len(seq_ids) == 1:
            table = self._tables[seq_ids[0]]
            return 0 if table.swapped else len(table.blocks)
        held: set[int] = set()
        for seq_id in seq_ids:
            table = self._tables[seq_id]
            if not table.swapped:
                held.update(table.blocks)
        return len(held)

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
        """Blocks that hold the demand's beginning, one token at least left out."""
        most = (demand.num_tokens - 1) // self.block_size
        hits: list[int] = []
        for content in islice(demand.block_hashes, most):
            block = self.device.find(content)
            if block is None:
                break
            hits.append(block)
        return hits

    def _copy_on_write(self, table: _Table, index: int, offset: int) -> BlockMove:
        source, target = table.blocks[index], self.device.take()
        self._filled[target] = offset
        self._used += offset
        table.blocks[index] = target
        table.view = None
        self._release(source)
        return BlockMove(MoveKind.COPY, source, target)

    def _write(self, table: _Table, count: int) -> None:
        """Fill ``count`` slots after the last token, taking blocks as they run out."""
        size, first = self.block_size, table.num_tokens
        last = first + count
        missing = self._blocks_for(last) - len(table.blocks)
        if missing > 0:
            table.blocks += [self.device.take() for _ in range(missing)]
            table.view = None
        for index in range(first // size, self._blocks_for(last)):
            self._filled[table.blocks[index]] = min(size, last - index * size)
        self._used += count
        self._reserved -= min(count, table.reserved)
        table.num_tokens = last

    def _share(self, block: int) -> None:
        """Share a full block of the device, which may be a cached one."""
        if not self.device.ref_counts[block]:
            self._filled[block] = self.block_size
            self._used += self.block_size
        self.device.share(block)

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

    def _set_filled(self, table: _Table) -> None:
        """Count the tokens of blocks that have come back, each once."""
        for index, block in enumerate(table.blocks):
            filled = min(self.block_size, table.num_tokens - index * self.block_size)
            self._used += filled - self._filled[block]
            self._filled[block] = filled

    def _refuse_known(self, seq_id: int) -> None:
        if seq_id in self._tables:
            raise ValueError(f"sequence {seq_id} already has a block table")
