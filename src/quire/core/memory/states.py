"""States of sequences in slots: one that each writes, and snapshots that are found again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from quire.core.memory.blocks import BlockHash, BlockMove, Content, MoveKind, name_of_state
from quire.core.memory.kept import KeptState
from quire.core.memory.pool import BlockPool, PoolNeed
from quire.core.memory.snapshots import Snapshots
from quire.core.memory.values import BlockTable, Demand, Fit, Usage, When
from quire.core.memory.views import PagedView, PoolView


class _Live:
    """The state of one sequence."""

    __slots__ = (
        "admitted", "charge", "confirmed", "drafts", "entry", "known", "latest", "num_tokens",
        "slot", "swapped", "unseen", "view",
    )  # fmt: skip

    def __init__(self, slot: int, num_tokens: int, admitted: int) -> None:
        self.slot = slot
        self.num_tokens = num_tokens  # that it stands for, once the step under way is done
        self.admitted = admitted  # tokens that were known when it was let in
        self.charge = 0.0  # slot-seconds, for slots that have been given back
        self.entry = 0.0  # BlockPool.charged of the slot when it was acquired
        self.known = 0  # tokens that somebody else has computed, whose text parts there
        self.latest: tuple[int, BlockHash] | None = None  # the last one that decoding has left
        self.swapped = False
        self.drafts = 0  # of the step under way
        self.unseen = 0  # its last tokens, confirmed drafts, which the state has not seen
        self.confirmed = 0  # those that it sees first in the step under way
        self.view: BlockTable | None = None


class StateAllocator:
    """Gives each sequence a slot for the states of its layers, and keeps some that it has left: the
    part of a ``LayeredAllocator`` that keeps states, with verbs as ``KVAllocator`` has them.

    Every token rewrites a sequence's state, so it cannot be cut back; it can be copied. A slot that
    others share, or that can be found by the name of the block that it stood at the end of, is
    copied before the next token is written. So forks share a slot until they write, and a prompt
    that begins with what a *snapshot* has seen goes on from a copy of it. One that a step comes by,
    on its way to later tokens, is left in a slot of its own.

    A state does not see drafts: what came in for them is kept in the slot, and those that turn out
    right are seen first by the next step. So ``trim`` takes back nothing.

    Snapshots live in slots that nobody else needs: they never cause a lack of room. Which of them
    go first is said by ``Snapshots``.

    alive: whether the rest of what a text has left at the end of the block of that name is here.
    """

    def __init__(
        self,
        num_slots: int,
        block_size: int,
        num_host_slots: int,
        kept: KeptState,
        alive: Callable[[BlockHash], bool] = lambda name: True,
        device: BlockPool | None = None,
    ) -> None:
        """device: of slots on pages that KV groups share; None: of ``num_slots`` of its own."""
        self.block_size = block_size
        self.device = BlockPool(num_slots) if device is None else device
        self.host = BlockPool(num_host_slots)
        self.tables: dict[int, _Live] = {}
        self._kept = kept
        self._snapshots = Snapshots(self.device, alive, kept.every // block_size)
        self._unsettled: set[int] = set()  # published, and computed by the step under way
        self._fetches: list[BlockMove] = []  # of what admissions have found in a source

    # -- admission -----------------------------------------------------------------------------

    def fit(self, demand: Demand) -> Fit:
        # What is found is copied, or taken where there is no other room: a slot either way.
        fresh = 1 + len(demand.forks)
        needed = fresh + self._owed(demand.headroom)
        free, capacity = self.device.num_free, self.device.num_blocks
        when = When.NOW if needed <= free else When.LATER
        if fresh > capacity:
            when = When.NEVER
        end = self.hit_blocks(demand)
        lost = self._deepest(demand, end, self._was_evicted)
        size = self.block_size
        return Fit(when, needed, free, capacity, end * size, (lost - end) * size)

    def need(self, demand: Demand) -> PoolNeed:
        """What ``admit`` needs, and those who run beside it."""
        end = self.hit_blocks(demand)
        found = self._find(demand.block_hashes[end - 1]) if end else None
        revived = () if found is None or self.device.ref_counts[found] else (found,)
        fresh = 1 + len(demand.forks) + self._owed(demand.headroom)
        return PoolNeed(fresh - len(revived), revived)

    def _was_evicted(self, name: BlockHash) -> bool:
        return self.device.eviction(name) is not None

    def hit_blocks(self, demand: Demand) -> int:
        """Leading blocks of the demand after which a snapshot has been taken."""
        fetchable = demand.fetchable

        def there(name: BlockHash) -> bool:
            if self._find(name) is not None:
                return True
            return bool(fetchable) and name_of_state(name) in fetchable

        return self._deepest(demand, 0, there)

    def admit(self, seq_id: int, demand: Demand) -> int | None:
        self._refuse_known(seq_id)
        if self.fit(demand).when is not When.NOW:
            return None
        end = self.hit_blocks(demand)
        found = self._find(demand.block_hashes[end - 1]) if end else None
        if demand.begins is not None:
            self._snapshots.text_comes(demand.begins)
        if found is None:
            slot = self.device.take()
            if end:  # it is fetched, and can be found from the next step on
                self._snapshots.add(slot, demand.block_hashes, end)
                self._unsettled.add(slot)
                kept = Content(name_of_state(demand.block_hashes[end - 1]), ())
                self._fetches.append(BlockMove(MoveKind.FETCH, end - 1, slot, content=kept))
        else:
            slot = found
            self.device.share_all([slot], found=True)
            self._snapshots.found(slot, parts=demand.known <= end * self.block_size)
        table = _Live(slot, end * self.block_size, demand.num_tokens)
        table.entry, table.known = self.device.charged(slot), demand.known
        self.tables[seq_id] = table
        return table.num_tokens

    def _find(self, name: BlockHash) -> int | None:
        """A copy is made before the step that computes an unsettled snapshot."""
        slot = self.device.find(name)
        return None if slot in self._unsettled else slot

    def _deepest(self, demand: Demand, least: int, there: Callable[[BlockHash], bool]) -> int:
        """The most leading blocks, more than ``least``, of whose last name that is true."""
        computed = demand.num_tokens - 1  # one token is left to compute
        if demand.most_cached is not None:
            computed = min(computed, demand.most_cached)
        names = demand.block_hashes
        end = min(len(names), computed // self.block_size)
        while end > least and not there(names[end - 1]):
            end -= 1
        return max(end, least)

    def _owed(self, headroom: int, coming: int = 0) -> int:
        """Slots that are to be taken before each sequence has its own.

        headroom: sequences that run, or will once they have forked.
        coming: those that come back from the host, which count among them.
        """
        on_device = len(self.tables)
        if self.host.num_held:
            on_device = sum(not table.swapped for table in self.tables.values())
        return max(on_device + coming, headroom) - self.device.num_held

    # -- growing -------------------------------------------------------------------------------

    def blocks_to_append(self, new_tokens: Mapping[int, int]) -> int:
        writers: dict[int, int] = {}
        for seq_id in new_tokens:
            slot = self.tables[seq_id].slot
            writers[slot] = writers.get(slot, 0) + 1
        # Of k writers among r owners all copy, except the last if nobody else holds the slot.
        counts = self.device.ref_counts
        return sum(min(k, counts[slot] - 1) for slot, k in writers.items())

    def append(self, new_tokens: Mapping[int, int]) -> list[BlockMove] | None:
        if self.blocks_to_append(new_tokens) > self.device.num_free:
            return None
        moves: list[BlockMove] = []
        tables = [self.tables[seq_id] for seq_id in new_tokens]
        for table in tables:  # those that must copy first, while there are slots
            if self.device.ref_counts[table.slot] > 1:
                moves.append(self._copy(table))
        for table, count in zip(tables, new_tokens.values(), strict=True):
            if self.device.content(table.slot) is not None:
                if self._snapshots.make_room(table.slot):
                    moves.append(self._copy(table))
                else:
                    self.device.invalidate(table.slot)
            table.num_tokens += count
            if table.confirmed != table.unseen:
                table.confirmed, table.view = table.unseen, None
            table.unseen = 0
        return moves

    def _copy(self, table: _Live) -> BlockMove:
        """Let the sequence go on in a slot of its own."""
        source = table.slot
        self._leave(table)
        table.slot = self.device.take()
        table.entry, table.view = self.device.charged(table.slot), None
        return BlockMove(MoveKind.COPY, source, table.slot)

    def _leave(self, table: _Live) -> None:
        table.charge += self.device.charged(table.slot) - table.entry
        self.device.release(table.slot)

    def draft(self, seq_id: int, count: int) -> bool:
        if count > self._kept.drafts:
            return False
        table = self.tables[seq_id]
        if self._kept.whole and self.device.content(table.slot) is not None:
            return False
        table.drafts = count
        table.num_tokens += count
        return True

    def trim(self, seq_id: int, num_tokens: int) -> None:
        table = self.tables[seq_id]
        known = table.num_tokens - table.drafts
        if not known <= num_tokens <= table.num_tokens:
            raise ValueError(f"the state of sequence {seq_id} cannot be cut back")
        if table.drafts:
            table.num_tokens, table.unseen, table.drafts = num_tokens, num_tokens - known, 0

    def fork(self, parent_id: int, child_id: int) -> list[BlockMove]:
        self._refuse_known(child_id)
        parent = self.tables[parent_id]
        child = _Live(parent.slot, parent.num_tokens, parent.num_tokens)
        child.swapped, child.unseen = parent.swapped, parent.unseen
        pool = self.host if parent.swapped else self.device
        pool.share(parent.slot)
        child.entry = pool.charged(parent.slot)
        self.tables[child_id] = child
        return []

    # -- snapshots -----------------------------------------------------------------------------

    def commit(self, seq_id: int, block_hashes: Sequence[BlockHash], count: int) -> None:
        table = self.tables[seq_id]
        if table.num_tokens != count * self.block_size or table.unseen:
            return  # it stands for more than full blocks, or for less
        decoding = table.num_tokens > table.admitted
        if decoding and table.num_tokens % self._kept.decoding:
            return
        if decoding and table.latest is not None:  # of those that decoding leaves, the last alone
            self._forget_unused(*table.latest)
        parted = table.num_tokens == table.known
        if self._snapshots.add(table.slot, block_hashes, count, parted=parted):
            self._unsettled.add(table.slot)
            if decoding:
                table.latest = table.slot, block_hashes[count - 1]

    def leave(
        self, seq_id: int, block_hashes: Sequence[BlockHash], count: int, *, idle: bool = False
    ) -> int | None:
        table, device = self.tables[seq_id], self.device
        parted = count * self.block_size == table.known
        if not self._snapshots.admits(block_hashes, count, parted=parted, idle=idle and not parted):
            return None
        slot = device.take()
        self._snapshots.add(slot, block_hashes, count, parted=parted)
        device.release(slot)
        return slot

    def _forget_unused(self, slot: int, name: BlockHash) -> None:
        device = self.device
        unused = device.content(slot) == name and not device.times_found[slot]
        if unused and not device.ref_counts[slot]:
            self.device.invalidate(slot)

    def settle(self) -> None:
        self._unsettled.clear()

    def take_fetches(self) -> list[BlockMove]:
        fetches, self._fetches = self._fetches, []
        return fetches

    # -- giving back and swapping --------------------------------------------------------------

    def free(self, seq_id: int, *, invalid: bool = False) -> float:
        table = self.tables.pop(seq_id)
        if table.swapped:
            self.host.release(table.slot)
            return table.charge
        if invalid:
            self.device.invalidate(table.slot)
        self._leave(table)
        return table.charge

    def charge(self, seq_id: int) -> float:
        table = self.tables[seq_id]
        if table.swapped:
            return table.charge
        return table.charge + self.device.charged(table.slot) - table.entry

    def can_swap_out(self, seq_ids: Iterable[int]) -> bool:
        return len({self.tables[seq_id].slot for seq_id in seq_ids}) <= self.host.num_free

    def swap_out(self, seq_ids: Iterable[int]) -> list[BlockMove] | None:
        ids = list(seq_ids)
        if not self.can_swap_out(ids):
            return None
        target: dict[int, int] = {}
        for table in (self.tables[seq_id] for seq_id in ids):
            source = table.slot
            if source in target:
                self.host.share(target[source])
            else:
                target[source] = self.host.take()
            self._leave(table)
            table.slot, table.swapped, table.view = target[source], True, None
        return [BlockMove(MoveKind.SWAP_OUT, *pair) for pair in target.items()]

    def need_to_swap_in(self, seq_ids: Iterable[int], headroom: int = 0) -> PoolNeed:
        return PoolNeed(self._owed(headroom, len([*seq_ids])))

    def swap_in(self, seq_ids: Iterable[int], headroom: int = 0) -> list[BlockMove] | None:
        ids = list(seq_ids)
        if self.need_to_swap_in(ids, headroom).blocks > self.device.num_free:
            return None
        target: dict[int, int] = {}
        for table in (self.tables[seq_id] for seq_id in ids):
            source = table.slot
            if source in target:
                self.device.share(target[source])
            else:
                target[source] = self.device.take()
            self.host.release(source)
            table.slot, table.swapped, table.view = target[source], False, None
            table.entry = self.device.charged(table.slot)
        return [BlockMove(MoveKind.SWAP_IN, *pair) for pair in target.items()]

    # -- for those who look --------------------------------------------------------------------

    def table(self, seq_id: int) -> BlockTable:
        table = self.tables[seq_id]
        if table.view is None:
            slot, size = (table.slot,), self.block_size
            table.view = BlockTable(slot, size, keeps_state=True, confirmed=table.confirmed)
        return table.view

    def num_tokens(self, seq_id: int) -> int:
        return self.tables[seq_id].num_tokens

    def blocks_held(self, seq_ids: Sequence[int]) -> tuple[int, int]:
        slots = [self.tables[seq_id].slot for seq_id in seq_ids if not self.tables[seq_id].swapped]
        distinct = len(set(slots))
        return distinct, len(slots) - distinct

    def usage(self) -> Usage:
        """Of slots that count like blocks; one that is held is in use as a whole."""
        size, pool = self.block_size, self.device
        blank = pool.num_free - pool.num_cached
        return Usage(pool.num_held * size, cached=pool.num_cached * size, free=blank * size)

    def views(self) -> tuple[PoolView, ...]:
        return (PagedView(self.device, None, None),)

    def audit(self, known: Collection[int]) -> list[str]:
        faults = []
        for seq_id in [one for one in self.tables if one not in known]:
            self.free(seq_id)
            faults.append(f"sequence {seq_id} had a state, and nobody who would free it")
        tables = self.tables.values()
        faults += self.device.audit("state", ((t.slot,) for t in tables if not t.swapped))
        return faults + self.host.audit("host", ((t.slot,) for t in tables if t.swapped))

    def _refuse_known(self, seq_id: int) -> None:
        if seq_id in self.tables:
            raise ValueError(f"sequence {seq_id} already has a state")
