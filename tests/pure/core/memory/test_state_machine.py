"""Random walks over every verb of the allocator; contents are tracked through the moves."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quire.core.memory import BlockMove, Demand, MoveKind, PagedAllocator, When, Window, hash_blocks
from support.invariants import check_allocator
from support.tables import visible

WINDOWS = st.builds(Window, st.integers(1, 9), st.integers(1, 10), st.sampled_from([0, 0, 1, 3, 6]))


class PagedMachine(RuleBasedStateMachine):
    """Slots hold (history) values; a sequence must always read back its own tokens."""

    @initialize(
        blocks=st.integers(1, 12),
        size=st.sampled_from([1, 2, 4]),
        host=st.integers(0, 8),
        window=st.none() | WINDOWS,
    )
    def build(self, blocks: int, size: int, host: int, window: Window | None) -> None:
        self.allocator = PagedAllocator(blocks, size, host, window)
        self.size, self.window = size, window
        self.device: dict[tuple[int, int], object] = {}
        self.host: dict[tuple[int, int], object] = {}
        self.texts: dict[int, list[int]] = {}  # seq_id -> tokens known
        self.computed: dict[int, int] = {}
        self.groups: list[list[int]] = []  # sequences that swap together
        self.swapped: set[int] = set()
        self.next_id = 0
        self.clock = self.held_seconds = self.charged = 0.0

    # -- helpers ---------------------------------------------------------------------------

    def replay(self, moves: list[BlockMove]) -> None:
        pools = {
            MoveKind.COPY: (self.device, self.device),
            MoveKind.SWAP_OUT: (self.device, self.host),
            MoveKind.SWAP_IN: (self.host, self.device),
        }
        for kind, source, target, *_ in moves:
            from_pool, to_pool = pools[kind]
            block = [from_pool.get((source, i)) for i in range(self.size)]
            to_pool.update({(target, i): value for i, value in enumerate(block)})

    def slot(self, seq_id: int, position: int) -> tuple[int, int]:
        return divmod(self.allocator.table(seq_id).slot(position), self.size)

    def seen(self, seq_id: int) -> list[int]:
        """The positions before it that the next token sees."""
        window, sinks = (self.window.tokens, self.window.sinks) if self.window else (None, 0)
        return list(visible(self.computed[seq_id], window, sinks))[:-1]

    def check_readable(self, seq_id: int) -> None:
        pool = self.host if seq_id in self.swapped else self.device
        for p in self.seen(seq_id):
            assert pool[self.slot(seq_id, p)] == tuple(self.texts[seq_id][: p + 1])

    def hashes(self, tokens: list[int]) -> list[bytes]:
        return hash_blocks(b"", tokens, self.size)

    def write(self, seq_id: int, count: int) -> None:
        start = self.computed[seq_id]
        for p in range(start, start + count):
            self.device[self.slot(seq_id, p)] = tuple(self.texts[seq_id][: p + 1])
        self.computed[seq_id] = start + count

    def pick(self, data: st.DataObject, swapped: bool = False) -> int | None:
        ids = [i for i in self.texts if (i in self.swapped) == swapped]
        return data.draw(st.sampled_from(ids)) if ids else None

    # -- rules -----------------------------------------------------------------------------

    @rule(data=st.data(), length=st.integers(1, 14))
    def admit(self, data: st.DataObject, length: int) -> None:
        tokens = [0] * length
        if data.draw(st.booleans()):
            tokens = data.draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
        demand = Demand(length, self.hashes(tokens), headroom=data.draw(st.integers(0, 2)))
        fit = self.allocator.fit(demand)
        cached = self.allocator.admit(self.next_id, demand)
        assert (cached is not None) == (fit.when is When.NOW)
        uncached = self.allocator.fit(Demand(length))
        if self.window is None:
            assert (uncached.when is When.NEVER) == (-(-length // self.size) > fit.capacity)
        elif uncached.when is When.NEVER:  # in blocks, the window and a step are too much
            window = self.window
            seen = min(length, window.sinks + window.tokens + window.step_tokens)
            assert -(-seen // self.size) + 4 > fit.capacity
        if cached is not None:
            assert cached == fit.cached < length
            self.texts[self.next_id], self.computed[self.next_id] = tokens, cached
            self.groups.append([self.next_id])
            self.next_id += 1
            if cached % self.size:  # the room for its copy on write is not reserved for longer
                self.grow({self.next_id - 1: 1})

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds: int) -> None:
        self.clock += seconds
        self.held_seconds += seconds * self.allocator.device.num_held
        self.allocator.advance(self.clock)

    @rule(data=st.data())
    def append_to_a_group(self, data: st.DataObject) -> None:
        groups = [g for g in self.groups if g and g[0] not in self.swapped]
        if not groups:
            return
        group = data.draw(st.sampled_from(groups))
        wants = {i: data.draw(st.integers(1, 5)) for i in group}
        before = [self.seen_blocks(i) for i in group]
        known = {i: self.computed[i] for i in group}
        if not self.grow(wants):
            assert before == [self.seen_blocks(i) for i in group]
            return
        for i in group:
            self.draft(i, data.draw(st.integers(0, 6)))
        check_allocator(self.allocator)
        if data.draw(st.booleans()):  # some of it was wrong
            members = group.copy()
            if data.draw(st.booleans()):
                self.fork_of(data.draw(st.sampled_from(group)))  # holds it all the same
            for i in members:
                least = max(known[i], self.allocator.tables[i].promised)
                if least <= self.computed[i]:
                    self.trim(i, data.draw(st.integers(least, self.computed[i])))

    def draft(self, seq_id: int, count: int) -> None:
        """Tokens beyond the last append, or nothing at all."""
        if not count:
            return
        free, held = self.allocator.num_free_blocks, self.allocator.table(seq_id).block_ids
        if self.allocator.draft(seq_id, count):
            assert self.allocator.table(seq_id).block_ids[: len(held)] == held, "all stay"
            self.texts[seq_id] = self.texts[seq_id][: self.computed[seq_id]] + [7] * count
            self.write(seq_id, count)
            return
        assert self.allocator.table(seq_id).block_ids == held
        room = len(held) * self.size + free * self.size
        dropped = self.allocator.table(seq_id).num_dropped * self.size
        assert self.computed[seq_id] + count > room + dropped

    def trim(self, seq_id: int, num_tokens: int) -> None:
        if self.clock % 2:  # some of it can be found: what is true of it will be written over
            hashes = self.hashes(self.texts[seq_id][: self.computed[seq_id]])
            self.allocator.commit(seq_id, hashes, len(hashes))
            self.allocator.settle()
        block, offset = divmod(num_tokens, self.size)
        if offset and num_tokens < self.computed[seq_id]:
            place = self.allocator.table(seq_id).block(block)
            if self.allocator.device.ref_counts[place] > 1:
                with pytest.raises(ValueError, match="forked since"):
                    self.allocator.trim(seq_id, num_tokens)
                return check_allocator(self.allocator)
        self.allocator.trim(seq_id, num_tokens)
        assert self.allocator.num_tokens(seq_id) == num_tokens
        del self.texts[seq_id][max(num_tokens, 1) :]
        self.computed[seq_id] = num_tokens
        check_allocator(self.allocator)

    def seen_blocks(self, seq_id: int) -> list[int]:
        """The blocks of what the next token sees, in order."""
        return list(dict.fromkeys(self.slot(seq_id, p)[0] for p in self.seen(seq_id)))

    def grow(self, wants: dict[int, int]) -> bool:
        needed, free = self.allocator.blocks_to_append(wants), self.allocator.num_free_blocks
        moves = self.allocator.append(wants)
        if moves is None:
            assert self.allocator.blocks_to_append(wants) > self.allocator.num_free_blocks
            return False
        taken = free - self.allocator.num_free_blocks
        assert taken == needed <= free if self.window is None else taken <= needed
        self.replay(moves)
        for i in wants:  # what the step itself reads
            self.check_readable(i)
            table, sinks = self.allocator.table(i), self.window.sinks if self.window else 0
            kept = {p // self.size for p in [*self.seen(i), *range(sinks)]}
            wanted = sorted(block for block in kept if block * self.size < self.computed[i])
            assert [table.block(b) for b in wanted] == list(table.block_ids[: len(wanted)]), (
                "what is not seen is gone, all else is there"
            )
        for i, count in wants.items():
            while len(self.texts[i]) < self.computed[i] + count:
                self.texts[i].append(i % 2)
            self.write(i, count)
        return True

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = self.pick(data)
        if parent is not None and self.computed[parent]:
            self.fork_of(parent)

    def fork_of(self, parent: int) -> None:
        free = self.allocator.num_free_blocks
        assert self.allocator.fork(parent, self.next_id) == []
        assert self.allocator.num_free_blocks == free
        self.texts[self.next_id] = self.texts[parent][: self.computed[parent]]
        self.computed[self.next_id] = self.computed[parent]
        next(g for g in self.groups if parent in g).append(self.next_id)
        self.next_id += 1

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        seq_id = self.pick(data)
        if seq_id is not None:
            done = self.texts[seq_id][: self.computed[seq_id]]
            hashes = self.hashes(done)
            self.allocator.commit(seq_id, hashes, len(hashes))
            self.allocator.settle()

    @rule(data=st.data(), swapped=st.booleans(), invalid=st.booleans())
    def free(self, data: st.DataObject, swapped: bool, invalid: bool) -> None:
        seq_id = self.pick(data, swapped)
        if seq_id is None:
            return
        self.charged += self.allocator.free(seq_id, invalid=invalid)
        del self.texts[seq_id], self.computed[seq_id]
        self.swapped.discard(seq_id)
        for group in self.groups:
            if seq_id in group:
                group.remove(seq_id)

    @rule(data=st.data())
    def swap(self, data: st.DataObject) -> None:
        groups = [g for g in self.groups if g]
        if not groups:
            return
        group = data.draw(st.sampled_from(groups))
        if group[0] in self.swapped:
            headroom = data.draw(st.integers(0, 2))
            moves = self.allocator.swap_in(group, headroom)
            if moves is not None:
                assert self.allocator.num_free_blocks >= headroom
                self.replay(moves)
                self.swapped.difference_update(group)
            return
        sinks = self.window.sinks if self.window else 0
        distinct = {
            self.slot(i, p)[0]
            for i in group
            for p in [*self.seen(i), *range(min(sinks, self.computed[i]))]
        }
        # A block that is to be written further is kept, though a window of one token sees none.
        distinct |= {
            self.slot(i, self.computed[i])[0] for i in group if self.computed[i] % self.size
        }
        room = self.allocator.host.num_free
        moves = self.allocator.swap_out(group)
        assert (moves is None) == (len(distinct) > room)
        if moves is not None:
            assert len(moves) == len(distinct), "one host block per distinct device block"
            self.replay(moves)
            self.swapped.update(group)

    # -- what must hold --------------------------------------------------------------------

    @invariant()
    def counts_are_exact(self) -> None:
        if hasattr(self, "allocator"):
            check_allocator(self.allocator)

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        for seq_id in getattr(self, "texts", ()):
            assert self.allocator.num_tokens(seq_id) == self.computed[seq_id]
            self.check_readable(seq_id)

    def teardown(self) -> None:
        if not hasattr(self, "allocator"):
            return
        for seq_id in list(self.texts):
            self.charged += self.allocator.free(seq_id)
        # Each block's time was divided among its owners, and nothing was lost or paid twice.
        assert abs(self.charged - self.held_seconds) < 1e-6
        usage = self.allocator.usage()
        assert usage.cached + usage.free == usage.capacity
        assert self.allocator.host.num_held == 0


TestPagedAllocator = PagedMachine.TestCase
TestPagedAllocator.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
