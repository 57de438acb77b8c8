"""Random walks over every verb of the contiguous allocators; contents follow the moves."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from quire.core.memory import BlockMove, Demand, MoveKind, When
from quire_lab.contiguous.allocator import ContiguousAllocator, Reservation
from support.contiguous_invariants import check_contiguous

MODEL_LENGTH = 20


class Group:
    """The promises of one admission."""

    def __init__(self, width: int, longest: int) -> None:
        self.width = width
        self.longest = longest
        self.members: list[int] = []


class ContiguousMachine(RuleBasedStateMachine):
    """Slots hold histories of tokens; a sequence must always read back its own.

    The moves of forks are carried out as a scheduler does it: before those of the next append or
    swap, whatever has been forked, freed or admitted in between.
    """

    @initialize(
        blocks=st.integers(1, 40),
        size=st.sampled_from([1, 2, 4]),
        policy=st.sampled_from([*Reservation, Reservation.POW2, Reservation.POW2]),
        host=st.sampled_from([0, 8, 40]),
    )
    def build(self, blocks: int, size: int, policy: Reservation, host: int) -> None:
        self.allocator = ContiguousAllocator(blocks, size, policy, MODEL_LENGTH, host)
        self.size, self.policy, self.blocks = size, policy, blocks
        self.device: dict[tuple[int, int], object] = {}
        self.host: dict[tuple[int, int], object] = {}
        self.pending: list[BlockMove] = []
        self.texts: dict[int, list[int]] = {}
        self.groups: dict[int, Group] = {}  # by member
        self.swapped: set[int] = set()
        self.charges: dict[int, float] = {}
        self.now = 0.0
        self.next_id = 0

    # -- helpers ---------------------------------------------------------------------------

    def replay(self, moves: list[BlockMove]) -> None:
        pools = {
            MoveKind.COPY: (self.device, self.device),
            MoveKind.SWAP_OUT: (self.device, self.host),
            MoveKind.SWAP_IN: (self.host, self.device),
        }
        for kind, source, target, *_ in self.pending + moves:
            from_pool, to_pool = pools[kind]
            block = [from_pool.get((source, i)) for i in range(self.size)]
            to_pool.update({(target, i): value for i, value in enumerate(block)})
        self.pending = []

    def read(self, seq_id: int, position: int) -> object:
        block, offset = divmod(position, self.size)
        pool = self.host if seq_id in self.swapped else self.device
        return pool[self.allocator.table(seq_id).block_ids[block], offset]

    def residents(self) -> list[int]:
        return [i for i in self.texts if i not in self.swapped]

    def state(self) -> object:
        tables = [self.allocator.table(i) for i in self.texts]
        return tables, self.allocator.usage(), [list(r) for r in self.allocator.device._free]

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.size)

    # -- rules -----------------------------------------------------------------------------

    @rule(
        prompt=st.integers(1, 10),
        output=st.integers(0, 10),
        width=st.sampled_from([1, 1, 2, 3]),
        headroom=st.integers(0, 2),
    )
    def admit(self, prompt: int, output: int, width: int, headroom: int) -> None:
        longest = prompt + output
        demand = Demand(prompt, (), (), headroom, width, longest)
        before = self.state()
        fit = self.allocator.fit(demand)
        assert self.state() == before
        in_the_end = MODEL_LENGTH if self.policy is Reservation.MAX else longest
        region = next(2**k for k in range(9) if 2**k * self.size >= in_the_end)
        assert (fit.when is When.NEVER) == (self.blocks // region < width)
        assert (fit.free, fit.capacity) == (self.allocator.num_free_blocks, self.blocks)
        admitted = self.allocator.admit(self.next_id, demand)
        assert admitted == (0 if fit.when is When.NOW else None)
        assert (self.allocator.usage().external == 0) or admitted is None
        if admitted is None:
            assert fit.when is not When.LATER or self.residents() or headroom, "an empty pool"
            return
        headroom = headroom if self.policy is Reservation.POW2 else 0
        assert fit.free - fit.needed == self.allocator.num_free_blocks - headroom
        self.texts[self.next_id], self.charges[self.next_id] = [], 0.0
        self.groups[self.next_id] = group = Group(width, longest)
        group.members.append(self.next_id)
        self.next_id += 1

    @precondition(lambda self: self.residents())
    @rule(data=st.data(), everyone=st.sampled_from([True, True, False]))
    def append(self, data: st.DataObject, everyone: bool) -> None:
        ids = self.residents()
        if not everyone:
            ids = data.draw(st.lists(st.sampled_from(ids), unique=True, min_size=1))
        wants = {}
        for i in ids:
            most = self.groups[i].longest - len(self.texts[i])
            if most:
                wants[i] = data.draw(st.integers(1, min(most, 4)))
        before, free = self.state(), self.allocator.num_free_blocks
        needed = self.allocator.blocks_to_append(wants)
        assert self.state() == before
        moves = self.allocator.append(wants)
        if moves is None:
            assert self.state() == before
            assert self.policy is Reservation.POW2
            assert len({self.groups[i] for i in self.residents()}) > 1, "nobody else is there"
            return
        assert needed == free - self.allocator.num_free_blocks
        self.replay(moves)
        for i, count in wants.items():
            for _ in range(count):
                self.texts[i].append(data.draw(st.integers(0, 1)))
                block, offset = divmod(len(self.texts[i]) - 1, self.size)
                place = self.allocator.table(i).block_ids[block], offset
                self.device[place] = tuple(self.texts[i])
        for i in wants:
            self.draft_and_trim(i, data.draw(st.integers(0, 5)), data)

    def draft_and_trim(self, seq_id: int, count: int, data: st.DataObject) -> None:
        """Tokens beyond the last append where they need no other region, and fewer after that."""
        count = min(count, self.groups[seq_id].longest - len(self.texts[seq_id]))
        before = self.state()
        if not self.allocator.draft(seq_id, count):
            assert self.policy is Reservation.POW2
            assert self.state() == before
            return
        assert self.allocator.num_tokens(seq_id) == len(self.texts[seq_id]) + count
        kept = data.draw(st.integers(0, count))
        self.allocator.trim(seq_id, len(self.texts[seq_id]) + kept)
        for _ in range(kept):
            self.texts[seq_id].append(7)
            block, offset = divmod(len(self.texts[seq_id]) - 1, self.size)
            place = self.allocator.table(seq_id).block_ids[block], offset
            self.device[place] = tuple(self.texts[seq_id])
        if not kept:
            assert self.state() == before

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(sorted(self.texts)))
        group = self.groups[parent]
        before, free = self.state(), self.allocator.num_free_blocks
        if parent in self.swapped or len(group.members) == group.width:
            with pytest.raises(ValueError, match="cannot fork"):
                self.allocator.fork(parent, self.next_id)
            assert self.state() == before
            return
        moves = self.allocator.fork(parent, self.next_id)
        assert self.allocator.num_free_blocks == free, "a fork allocates nothing"
        assert len(moves) == self.blocks_of(len(self.texts[parent]))
        self.pending += moves
        self.texts[self.next_id] = self.texts[parent].copy()
        self.charges[self.next_id] = 0.0
        self.groups[self.next_id] = group
        group.members.append(self.next_id)
        self.next_id += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.texts)))
        group = self.groups.pop(seq_id)
        free = self.allocator.num_free_blocks
        assert self.allocator.free(seq_id) == pytest.approx(self.charges.pop(seq_id))
        group.members.remove(seq_id)
        if set(group.members) - self.swapped:
            assert self.allocator.num_free_blocks == free, "its region is for forks to come"
        del self.texts[seq_id]
        self.swapped.discard(seq_id)

    @precondition(lambda self: self.residents())
    @rule(data=st.data())
    def swap_out(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.residents()), unique=True, min_size=1))
        needed = sum(self.blocks_of(len(self.texts[i])) for i in ids)
        before, room = self.state(), self.allocator.host.num_free
        moves = self.allocator.swap_out(ids)
        assert (moves is None) == (needed > room)
        if moves is None:
            assert self.state() == before
            return
        assert len(moves) == needed
        self.replay(moves)
        self.swapped.update(ids)

    @precondition(lambda self: self.swapped)
    @rule(data=st.data(), headroom=st.sampled_from([0, 0, 1, 40]))
    def swap_in(self, data: st.DataObject, headroom: int) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.swapped)), unique=True, min_size=1))
        before, occupied = self.state(), self.residents()
        here = {self.groups[i] for i in occupied}
        moves = self.allocator.swap_in(ids, headroom)
        if moves is None:
            assert self.state() == before
            one_group = len({self.groups[i] for i in ids}) == 1
            assert occupied or headroom or not one_group, "an empty pool must take it"
            return
        back = [i for i in ids if self.groups[i] not in here]
        more = {i: 1 for i in back if len(self.texts[i]) < self.groups[i].longest}
        assert self.allocator.blocks_to_append(more) == 0, "a token more has its place"
        if self.policy is Reservation.POW2:
            assert self.allocator.num_free_blocks >= headroom
        self.replay(moves)
        self.swapped.difference_update(ids)

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.allocator.advance(self.now)
        for group in set(self.groups.values()):
            here = [i for i in group.members if i not in self.swapped]
            held, _ = self.allocator.blocks_held(here)
            for i in here:
                region = len(self.allocator.table(i).block_ids)
                assert held == region * group.width
                self.charges[i] += seconds * held / len(here)

    # -- what must hold --------------------------------------------------------------------

    @invariant()
    def counts_are_exact(self) -> None:
        if hasattr(self, "allocator"):
            check_contiguous(self.allocator)

    @invariant()
    def tables_are_consecutive_powers_of_two(self) -> None:
        for seq_id in self.residents() if hasattr(self, "allocator") else ():
            blocks = self.allocator.table(seq_id).block_ids
            assert list(blocks) == list(range(blocks[0], blocks[0] + len(blocks)))
            assert len(blocks).bit_count() == 1

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        if not hasattr(self, "allocator"):
            return
        device, pending = self.device.copy(), self.pending
        self.replay([])  # as if the next step began now
        for seq_id, text in self.texts.items():
            assert self.allocator.num_tokens(seq_id) == len(text)
            for p in range(len(text)):
                assert self.read(seq_id, p) == tuple(text[: p + 1])
        self.device, self.pending = device, pending

    def teardown(self) -> None:
        if not hasattr(self, "allocator"):
            return
        for seq_id in list(self.texts):
            self.allocator.free(seq_id)
        assert self.allocator.num_free_blocks == self.blocks
        assert self.allocator.host.num_held == 0
        check_contiguous(self.allocator)


TestContiguousAllocator = pytest.mark.slow(ContiguousMachine.TestCase)
TestContiguousAllocator.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
