"""PagedAllocator, the block manager of PagedAttention (Kwon et al., SOSP 2023, section 4)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from quire.core.memory.blocks import OUTSIDE, BlockHash, BlockMove, MoveKind
from quire.core.memory.holdings import BlockList, Holdings, Occupancy
from quire.core.memory.kept import (
    Hits,
    Window,
    dropped,
    evicted_tokens,
    find_hits,
    kept_by,
    most_held,
)
from quire.core.memory.pool import BlockPool, ContentWatcher, PoolNeed
from quire.core.memory.values import BlockTable, Demand, Fit, Unit, Usage, When
from quire.core.memory.views import PagedView, PoolView


class PagedAllocator:
    """Fixed-size blocks anywhere in memory, allocated on demand, shared by reference count.

    A block is copied when a sequence is about to write into it while others hold it too. Full
    blocks are found again by content (prefix caching) until their memory is needed.

    With a ``window``, a sequence gives back the blocks that its later tokens cannot see, all but
    those of its attention sinks.
    """

    unit: Unit = "blocks"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        window: Window | None = None,
        device: BlockPool | None = None,
    ) -> None:
        """device: of blocks on pages that KV groups share; None: of ``num_blocks`` of its own."""
        if num_blocks < 1 or block_size < 1 or num_host_blocks < 0:
            raise ValueError(
                "num_blocks and block_size must be at least 1, num_host_blocks at least 0; got "
                f"{num_blocks}, {block_size}, {num_host_blocks}"
            )
        self.block_size = block_size
        self.window = window
        self._kept = kept_by(window)
        self.device = BlockPool(num_blocks) if device is None else device
        self.host = BlockPool(num_host_blocks)
        self._num_sinks = self._kept.sink_blocks(block_size)
        self.tables = Tables()
        self.occupancy = Occupancy(self.device, block_size)
        self._holdings = Holdings(self.device, self.occupancy, block_size)
        self._unsettled: set[int] = set()  # published, and computed by the step under way
        self._fetches: list[BlockMove] = []  # of what admissions have found in a source

    @property
    def contents(self) -> PagedAllocator:
        return self

    @property
    def num_free_blocks(self) -> int:
        return self.device.num_free

    def advance(self, now: float) -> None:
        self.device.now = now

    def fit(self, demand: Demand) -> Fit:
        return self._fit(demand, self._hits(demand))

    def hit_blocks(self, demand: Demand) -> int:
        """Leading blocks of the demand that need not be computed."""
        return self._hits(demand).end

    def need(self, demand: Demand) -> PoolNeed:
        """What ``admit`` needs, and those who run beside it."""
        return self._need(demand, self._hits(demand))[1]

    def _need(self, demand: Demand, hits: Hits) -> tuple[int, PoolNeed]:
        """Blocks that its sequences hold at most at one time, and what it needs with these hits."""
        fresh = most_held(demand, hits.num_dropped, self.block_size, self._kept)
        blocks, ref_counts = hits.shared, self.device.ref_counts
        into = hits.blocks[-1] if hits.tokens % self.block_size else OUTSIDE
        if into != OUTSIDE and ref_counts[into]:
            fresh += 1  # others hold the block that the next token goes into: it will be copied
        # A hit on a held block costs nothing; on a cached one it takes that block off the free.
        revived = [block for block in blocks if not ref_counts[block]]
        return fresh, PoolNeed(fresh - len(blocks) + demand.headroom, revived)

    def _fit(self, demand: Demand, hits: Hits) -> Fit:
        fresh, need = self._need(demand, hits)
        free, capacity = self.device.num_free, self.device.num_blocks
        when = When.NOW if need.blocks <= free else When.LATER
        if fresh > capacity:
            when = When.NEVER
        evicted = evicted_tokens(demand, hits.end, self.device, self.block_size)
        return Fit(when, need.blocks, free, capacity, hits.tokens, evicted)

    def admit(self, seq_id: int, demand: Demand, *, fill: bool = False) -> int | None:
        """See ``KVAllocator.admit``. fill: all its tokens have slots at once, as if ``append`` had
        been called for them; then a hit ends with a block, so that nothing is copied.
        """
        self._refuse_known(seq_id)
        if fill:
            whole = (demand.num_tokens - 1) // self.block_size * self.block_size
            demand = replace(demand, most_cached=min(whole, demand.most_cached or whole))
        hits = self._hits(demand)
        if self._fit(demand, hits).when is not When.NOW:
            return None
        length = -(-demand.num_tokens // self.block_size) - hits.num_dropped
        length = self._kept.most_held([length], self.block_size)  # what it gives back serves twice
        promised = min(demand.num_tokens, (hits.num_dropped + length) * self.block_size)
        table = BlockList(hits.tokens, promised, hits.num_dropped, self._num_sinks)
        table.num_published = hits.end
        # From here on the hits are this sequence's too, even if others free them; the
        # others are its own, until it forks. ``free`` gives up both alike.
        shared = hits.shared
        self.occupancy.revive(shared)
        self.device.taker = seq_id
        table.blocks = shared  # shared before any take(), which could evict them
        table.entries = self.device.share_all(shared, found=True)
        if len(shared) < len(hits.blocks):
            self._fetches += self._holdings.fetch(table, hits, demand.block_hashes)
        self._holdings.acquire_new(table, length - len(hits.blocks))
        self.tables[seq_id] = table
        self.occupancy.reserved += table.reserved
        if fill and self.append({seq_id: demand.num_tokens - hits.tokens}) is None:
            self.free(seq_id)
            return None
        return hits.tokens

    def take_fetches(self) -> list[BlockMove]:
        fetches, self._fetches = self._fetches, []
        return fetches

    def locate(self, content: BlockHash) -> Sequence[int] | None:
        block = self.device.find(content)
        return None if block is None else (block,)

    def blocks_to_append(self, new_tokens: Mapping[int, int]) -> int:
        size, tables, ref_counts = self.block_size, self.tables, self.device.ref_counts
        growth = 0
        writers: dict[int, int] = {}  # shared block -> sharers about to write into it
        for seq_id, count in new_tokens.items():
            table = tables[seq_id]
            first, blocks = table.num_tokens, table.blocks
            index, offset = divmod(first, size)
            if offset + count > size or not offset:  # else its last block has room
                growth += table.missing(first + count, size)
            if offset:
                block = blocks[index - table.num_dropped]
                if ref_counts[block] > 1:
                    writers[block] = writers.get(block, 0) + 1
        # Of k writers among r owners all copy, except the last if nobody else holds the block.
        copied = [min(k, ref_counts[block] - 1) for block, k in writers.items()]
        return growth + sum(copied)

    def append(
        self, new_tokens: Mapping[int, int], group: Collection[int] = ()
    ) -> list[BlockMove] | None:
        if self.window is not None:  # most have none, and this is done for every token
            self.drop(group or new_tokens)
        if len(new_tokens) == 1 and self._append_in_place(new_tokens):
            return []
        if self.blocks_to_append(new_tokens) > self.device.num_free:
            return None
        size, ref_counts = self.block_size, self.device.ref_counts
        moves: list[BlockMove] = []
        for seq_id, count in new_tokens.items():
            table = self.tables[seq_id]
            self.device.taker = seq_id
            index, offset = divmod(table.num_tokens, size)
            index -= table.num_dropped
            if offset and ref_counts[table.blocks[index]] > 1:
                moves.append(self._holdings.copy_on_write(table, index, offset))
            self._holdings.write(table, count)
        return moves

    def draft(self, seq_id: int, count: int) -> bool:
        # The last append has made the tail the sequence's own.
        table, size = self.tables[seq_id], self.block_size
        offset = table.num_tokens % size
        if offset and offset + count <= size and not table.reserved:
            self.occupancy.extend(table.blocks[-1], count)
            table.num_tokens += count
            return True
        if table.missing(table.num_tokens + count, size) > self.device.num_free:
            return False
        self._holdings.write(table, count)
        return True

    def trim(self, seq_id: int, num_tokens: int) -> None:
        table, size = self.tables[seq_id], self.block_size
        if num_tokens == table.num_tokens:
            return
        index, offset = num_tokens // size - table.num_dropped, num_tokens % size
        if num_tokens < table.promised:
            raise ValueError(f"sequence {seq_id} was admitted with {table.promised} tokens")
        if offset and self.device.ref_counts[table.blocks[index]] > 1:
            raise ValueError(f"sequence {seq_id} has been forked since it had {num_tokens} tokens")
        table.num_tokens = num_tokens
        while len(table.blocks) > table.filled(size):
            self._holdings.release_last(table)
        if offset:  # what comes next is written over tokens that were here
            block = table.blocks[index]
            self.device.invalidate(block)
            self.occupancy.extend(block, offset - self.occupancy.filled[block])
        table.num_published = min(table.num_published, num_tokens // size)

    def drop(self, seq_ids: Iterable[int]) -> None:
        """Give back the blocks that these sequences' next tokens and all later ones cannot see.

        Their next owner may not write before a step that reads them is done. No later step reads
        them, so this is not undone where there is no room for what comes next.
        """
        if self.window is None:
            return
        for seq_id in seq_ids:
            table = self.tables[seq_id]
            if table.num_tokens < table.leaves_at:
                continue
            gone = dropped(self.window, table.num_tokens, self.block_size)
            count = gone - table.num_dropped
            if count > 0:
                self._holdings.release_first(table, count)
            left = self._num_sinks + table.num_dropped
            table.leaves_at = self.window.leaves_at(left, self.block_size)

    def fork(self, parent_id: int, child_id: int) -> list[BlockMove]:
        # Allocates nothing, so it cannot run out.
        self._refuse_known(child_id)
        parent = self.tables[parent_id]
        num_tokens = parent.num_tokens
        child = BlockList(num_tokens, num_tokens, parent.num_dropped, self._num_sinks)
        child.num_published, child.swapped = parent.num_published, parent.swapped
        child.blocks = self._filled_blocks(parent)
        entries = (self.host if parent.swapped else self.device).share_all(child.blocks)
        child.entries = [] if parent.swapped else entries
        self.tables[child_id] = child
        return []

    def commit(self, seq_id: int, block_hashes: Sequence[BlockHash], count: int) -> None:
        table = self.tables[seq_id]
        sinks, dropped, first = table.num_sinks, table.num_dropped, table.num_published
        self._publish(table.blocks, block_hashes, range(first, min(sinks, count)), 0)
        kept = range(max(first, sinks + dropped), count)
        self._publish(table.blocks, block_hashes, kept, dropped)
        table.num_published = max(first, count)

    def _publish(
        self, blocks: list[int], block_hashes: Sequence[BlockHash], logical: range, dropped: int
    ) -> None:
        for i in logical:
            block = blocks[i - dropped]
            self.device.publish(block, block_hashes[i])
            self._unsettled.add(block)

    def settle(self) -> None:
        self._unsettled.clear()

    def keep(self, seq_id: int, num_tokens: int, seconds: float) -> None:
        table, until = self.tables[seq_id], self.device.now + seconds
        if not table.swapped:
            for block in table.blocks[: max(0, num_tokens // self.block_size - table.num_dropped)]:
                self.device.kept.keep(block, until)

    def free(self, seq_id: int, *, invalid: bool = False) -> float:
        table = self.tables[seq_id]
        del self.tables[seq_id]
        if invalid and not table.swapped:
            for block in table.blocks:
                self.device.invalidate(block)
        if table.swapped:
            for block in table.blocks:
                self.host.release(block)
        else:
            self._holdings.release_all(table)
        return table.charge

    def leave(
        self, seq_id: int, block_hashes: Sequence[BlockHash], count: int, *, idle: bool = False
    ) -> None:
        """None: no layer keeps a state."""

    def locate_state(self, content: BlockHash) -> None:
        """None: blocks are all that there is."""

    def invalidate(self, block: int, kv_group: int = 0) -> None:
        self.device.invalidate(block)

    def watch(self, watcher: ContentWatcher) -> None:
        self.device.watch(watcher, 0)

    def clear_contents(self) -> None:
        for pool in (self.device, self.host):
            pool.clear()

    def charge(self, seq_id: int) -> float:
        table = self.tables[seq_id]
        charged = map(self.device.charged, () if table.swapped else table.blocks)
        return table.charge + sum(charged) - sum(table.entries)

    def can_swap_out(self, seq_ids: Iterable[int]) -> bool:
        filled = (self._filled_blocks(self.tables[seq_id]) for seq_id in seq_ids)
        return len(_distinct(filled)) <= self.host.num_free

    def swap_out(self, seq_ids: Iterable[int]) -> list[BlockMove] | None:
        seq_ids = list(seq_ids)
        # Before they leave, so that none comes back only to be dropped: were its move to fail,
        # nobody would own it, and its content would still be found.
        self.drop(seq_ids)
        if not self.can_swap_out(seq_ids):
            return None
        tables = [self.tables[seq_id] for seq_id in seq_ids]
        filled = [self._filled_blocks(table) for table in tables]
        distinct = _distinct(filled)
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
            self._holdings.release_all(table)
            table.blocks = [target[block] for block in blocks]
            table.swapped, table.view = True, None
        return [BlockMove(MoveKind.SWAP_OUT, block, target[block]) for block in distinct]

    def need_to_swap_in(self, seq_ids: Iterable[int], headroom: int = 0) -> PoolNeed:
        tables = [self.tables[seq_id] for seq_id in seq_ids]
        distinct = _distinct(table.blocks for table in tables)
        found = self._still_on_device(distinct)
        revived = [block for block in found.values() if not self.device.ref_counts[block]]
        tails = sum(table.missing(table.promised, self.block_size) for table in tables)
        return PoolNeed(len(distinct) - len(found) + tails + headroom, revived)

    def blocks_to_swap_in(self, seq_ids: Iterable[int], headroom: int = 0) -> int:
        return self.need_to_swap_in(seq_ids, headroom).blocks

    def swap_in(self, seq_ids: Iterable[int], headroom: int = 0) -> list[BlockMove] | None:
        seq_ids = list(seq_ids)
        if self.blocks_to_swap_in(seq_ids, headroom) > self.device.num_free:
            return None
        tables = [self.tables[seq_id] for seq_id in seq_ids]
        distinct = _distinct(table.blocks for table in tables)
        target = self._still_on_device(distinct)
        self.occupancy.revive(target.values())
        self.device.share_all(list(target.values()))  # before any take(), which could evict them
        moves = []
        for block in distinct:
            if block not in target:
                target[block] = self._restore(block)
                moves.append(BlockMove(MoveKind.SWAP_IN, block, target[block]))
        seen: set[int] = set()
        for table in tables:
            host_blocks, table.blocks = table.blocks, []
            for block in host_blocks:
                if block in seen:  # the first owner's reference is the one taken above
                    self.device.share(target[block])
                seen.add(block)
                self.host.release(block)
                self._holdings.acquire(table, target[block])
            missing = table.missing(table.promised, self.block_size)
            self._holdings.acquire_new(table, missing)
            table.swapped = False
            self.occupancy.fill(table)
            self.occupancy.reserved += table.reserved
        return moves

    def table(self, seq_id: int) -> BlockTable:
        table = self.tables[seq_id]
        if table.view is None:
            table.view = table.frozen(self.block_size)
        return table.view

    def num_tokens(self, seq_id: int) -> int:
        return self.tables[seq_id].num_tokens

    def blocks_held(self, seq_ids: Sequence[int]) -> tuple[int, int]:
        if len(seq_ids) == 1:
            table = self.tables[seq_ids[0]]
            return (0, 0) if table.swapped else (len(table.blocks), 0)
        tables = [self.tables[seq_id] for seq_id in seq_ids]
        held = [table.blocks for table in tables if not table.swapped]
        distinct = len(set().union(*held))
        return distinct, sum(map(len, held)) - distinct

    def usage(self) -> Usage:
        return self.occupancy.usage()

    def views(self) -> tuple[PoolView, ...]:
        return (PagedView(self.device, self.occupancy, self.window),)

    def audit(self, known: Collection[int]) -> list[str]:
        faults, tables = [], self.tables
        for seq_id in [one for one in tables if one not in known]:
            self.free(seq_id)
            faults.append(f"sequence {seq_id} had blocks, and nobody who would free them")
        on_device = [table for table in tables.values() if not table.swapped]
        on_host = [table for table in tables.values() if table.swapped]
        faults += self.device.audit("device", (table.blocks for table in on_device))
        faults += self.host.audit("host", (table.blocks for table in on_host))
        if self.occupancy.recount(on_device) or faults:
            faults.append("slots were counted that are not there")
        return faults

    def _filled_blocks(self, table: BlockList) -> list[int]:
        return table.blocks[: table.filled(self.block_size)]

    def _hits(self, demand: Demand) -> Hits:
        return find_hits(demand, self.device, self.block_size, self._kept, self._unsettled)

    def _append_in_place(self, new_tokens: Mapping[int, int]) -> bool:
        """Tokens of one sequence, into a block of its own that has room: most appends."""
        ((seq_id, count),) = new_tokens.items()
        table = self.tables[seq_id]
        index, offset = divmod(table.num_tokens, self.block_size)
        if not offset or offset + count > self.block_size:
            return False
        block = table.blocks[index - table.num_dropped]
        if self.device.ref_counts[block] != 1:
            return False
        self._holdings.write_in_place(table, block, offset + count, count)
        return True

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
        if seq_id in self.tables:
            raise ValueError(f"sequence {seq_id} already has a block table")


class Tables(dict[int, BlockList]):
    """Block lists by sequence."""

    def __missing__(self, seq_id: int) -> BlockList:
        raise KeyError(f"sequence {seq_id} has no block table")


def _distinct(tables: Iterable[Iterable[int]]) -> list[int]:
    """The blocks of these tables, each once, in order."""
    return list(dict.fromkeys(block for blocks in tables for block in blocks))
