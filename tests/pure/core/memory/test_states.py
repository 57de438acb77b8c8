"""Random walks over states beside blocks: what each slot holds is the text that it stands for."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quire.core.memory import (
    BlockMove,
    Demand,
    KeptState,
    LayeredAllocator,
    MoveKind,
    PagedAllocator,
    SnapshotPlaces,
    StateAllocator,
    When,
    Window,
    hash_blocks,
)
from support.invariants import check_states

Text = tuple[int, ...]


class Write(NamedTuple):
    """A chunk of a step: which slot it goes on in, from where to where of which text."""

    seq_id: int
    slot: int
    start: int
    text: Text
    confirmed: int
    drafts: Text = ()


class Slot(NamedTuple):
    """A state of a text, and drafts after it, which it has not seen."""

    text: Text
    drafts: Text = ()


class StatesMachine(RuleBasedStateMachine):
    """A slot holds a text; a sequence must find there what it has written, and nothing else."""

    @initialize(
        slots=st.integers(1, 6),
        size=st.sampled_from([1, 2, 4]),
        host=st.integers(0, 3),
        window=st.none() | st.builds(Window, st.integers(1, 6), st.just(8), st.just(0)),
        decoding=st.sampled_from([1, 2, 3]),
        blocks=st.sampled_from([12, 1000]),
        drafts=st.sampled_from([0, 1, 3]),
    )
    def build(
        self,
        slots: int,
        size: int,
        host: int,
        window: Window | None,
        decoding: int,
        blocks: int,
        drafts: int,
    ) -> None:
        kept = KeptState(every=2 * size, decoding=decoding * size, drafts=drafts)
        groups = [PagedAllocator(blocks, size, 100)]
        if window is not None:
            groups.append(PagedAllocator(blocks, size, 100, window))
        alive = lambda name: groups[0].locate(name) is not None  # noqa: E731
        self.states = StateAllocator(slots, size, host, kept, alive)
        self.allocator = LayeredAllocator(size, groups, self.states)
        self.size, self.number, self.roomy = size, len(groups), blocks == 1000
        self.places = SnapshotPlaces(kept.every, size, kept.decoding)
        self.device: dict[int, Slot] = {}
        self.host: dict[int, Slot] = {}
        self.most_drafts = drafts
        self.texts: dict[int, Text] = {}  # computed tokens of each sequence
        self.prompts: dict[int, int] = {}  # tokens that each began with
        self.swapped: set[int] = set()
        self.next_id = 0
        self.held = self.charged = self.clock = 0.0

    def replay(self, moves: list[BlockMove]) -> None:
        pools = {
            MoveKind.COPY: (self.device, self.device),
            MoveKind.SWAP_OUT: (self.device, self.host),
            MoveKind.SWAP_IN: (self.host, self.device),
        }
        for move in moves:
            if move.kv_group == self.number:
                source, target = pools[move.kind]
                target[move.target] = source[move.source]

    def slot_of(self, seq_id: int) -> int:
        table = self.allocator.table(seq_id).kv_groups[-1]
        assert table.keeps_state and len(table.block_ids) == 1
        return table.block_ids[0]

    def commit(self, seq_id: int, start: int, known: Text) -> None:
        full = len(known) // self.size
        if full > start // self.size:
            self.allocator.commit(seq_id, hash_blocks(b"", known, self.size), full)

    @property
    def running(self) -> list[int]:
        return [one for one in self.texts if one not in self.swapped]

    def grow(self, seq_id: int, known: Text, moves: list[BlockMove]) -> Write | None:
        """Plan a chunk of all that is known of a sequence, up to where a snapshot is taken."""
        start = len(self.texts[seq_id])
        free = self.states.device.num_free
        more = self.allocator.append({seq_id: len(known) - start})
        if more is None:
            assert self.states.blocks_to_append({seq_id: 1}) > free or not self.roomy
            return None
        moves += more
        self.commit(seq_id, start, known)
        confirmed = self.allocator.table(seq_id).kv_groups[-1].confirmed
        return Write(seq_id, self.slot_of(seq_id), start, known, confirmed)

    def draft(self, write: Write, drafts: Text) -> Write:
        """As far as there is room."""
        if not self.allocator.draft(write.seq_id, len(drafts)):
            assert len(drafts) > self.most_drafts or not self.roomy
            return write
        return write._replace(drafts=drafts)

    @rule(data=st.data(), arrivals=st.integers(0, 2))
    def step(self, data: st.DataObject, arrivals: int) -> None:
        """Some grow, others are let in; then all moves are carried out, then all is written."""
        self.allocator.settle()
        moves: list[BlockMove] = []
        writes = []
        for seq_id in list(self.running):
            if data.draw(st.booleans()):
                count = data.draw(st.integers(1, 5))
                more = tuple(data.draw(st.integers(0, 1)) for _ in range(count))
                write = self.grow(seq_id, self.texts[seq_id] + more, moves)
                # Drafts follow what is known.
                generating = write is not None and len(write.text) >= self.prompts[seq_id]
                if write is not None and generating and data.draw(st.booleans()):
                    drafts = st.lists(st.integers(0, 1), min_size=1, max_size=4)
                    write = self.draft(write, tuple(data.draw(drafts)))
                writes.append(write)
        for _ in range(arrivals):
            prompt = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=14))
            writes.append(self.arrive(tuple(prompt), moves))
        self.replay(moves)
        done = [write for write in writes if write is not None]
        left: dict[int, Text] = {}
        for write in done:
            self.leave(write, left, data.draw(st.booleans()))
        slots = [*(write.slot for write in done), *left]
        assert len(set(slots)) == len(slots), "two write one slot"
        self.device |= {slot: Slot(text) for slot, text in left.items()}
        for seq_id, slot, start, text, confirmed, drafts in done:
            held = self.device.get(slot, Slot(()))
            assert not start or held.text + held.drafts[:confirmed] == text[:start]
            self.device[slot] = Slot(text, drafts)
            right = data.draw(st.integers(0, len(drafts)))
            self.texts[seq_id] = text + drafts[:right]
            if drafts:
                self.allocator.trim(seq_id, len(text) + right)
                self.commit(seq_id, len(text), self.texts[seq_id])

    def leave(self, write: Write, left: dict[int, Text], every: bool) -> None:
        """Take snapshots within what is written, by their slots: of every block, or of the last."""
        size, free = self.size, self.states.device.num_free
        counts = range((len(write.text) - 1) // size, write.start // size, -1)
        names = hash_blocks(b"", write.text, size)
        for count in () if write.drafts else counts if every else counts[:1]:
            slot = self.allocator.leave(write.seq_id, names, count)
            if slot is not None:
                left[slot] = write.text[: count * size]
                assert self.states.device.find(names[count - 1]) == slot
        assert self.states.device.num_free == free, "it is nobody's"

    def arrive(self, prompt: Text, moves: list[BlockMove]) -> Write | None:
        demand = Demand(len(prompt), hash_blocks(b"", prompt, self.size))
        fit, seq_id = self.allocator.fit(demand), self.next_id
        cached = self.allocator.admit(seq_id, demand)
        assert (cached is not None) == (fit.when is When.NOW)
        slots = self.states.device.num_blocks
        if self.roomy:  # each has a slot, or will: then there is no room for more; else there is
            assert (cached is not None) == (len(self.running) < slots)
        if cached is None:
            return None
        assert cached == fit.cached <= max(0, len(prompt) - 1) and not cached % self.size
        assert cached + fit.stateless < len(prompt)
        self.next_id += 1
        self.texts[seq_id], self.prompts[seq_id] = prompt[:cached], len(prompt)
        places = self.places.of(len(prompt), cached, cached + fit.stateless)
        end = places[-1] if places else len(prompt)
        write = self.grow(seq_id, prompt[:end], moves)
        assert write is not None, "what is let in has room to begin"
        return write

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        if self.running and len(self.running) < self.states.device.num_blocks:
            parent = data.draw(st.sampled_from(self.running))
            self.replay(self.allocator.fork(parent, self.next_id))
            self.texts[self.next_id] = self.texts[parent]
            self.prompts[self.next_id] = len(self.texts[parent])
            self.next_id += 1

    @rule(data=st.data())
    def swap(self, data: st.DataObject) -> None:
        """As between steps: what was planned is done."""
        self.allocator.settle()
        back = data.draw(st.booleans())
        among = sorted(self.swapped) if back else self.running
        if not among:
            return
        ids = data.draw(st.lists(st.sampled_from(among), min_size=1, unique=True))
        moves = self.allocator.swap_in(ids) if back else self.allocator.swap_out(ids)
        if moves is None:
            return
        self.replay(moves)
        self.swapped = self.swapped - set(ids) if back else self.swapped | set(ids)

    @rule(data=st.data(), invalid=st.booleans())
    def end(self, data: st.DataObject, invalid: bool) -> None:
        if self.texts:
            seq_id = data.draw(st.sampled_from(sorted(self.texts)))
            slot, gone = self.slot_of(seq_id), seq_id not in self.swapped
            self.states.free(seq_id, invalid=invalid)
            for kv_group in self.allocator.kv_groups[:-1]:
                kv_group.free(seq_id, invalid=invalid)
            if invalid and gone:
                assert self.states.device.content(slot) is None
            del self.texts[seq_id]
            self.swapped.discard(seq_id)

    @rule()
    def reset(self) -> None:
        self.allocator.clear_contents()

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds: int) -> None:
        self.clock += seconds
        self.allocator.advance(self.clock)

    @invariant()
    def is_sound(self) -> None:
        if not hasattr(self, "states"):
            return
        check_states(self.states)
        for seq_id, text in self.texts.items():
            pool = self.host if seq_id in self.swapped else self.device
            held, unseen = pool.get(self.slot_of(seq_id)), self.states.tables[seq_id].unseen
            assert not text or (held and held.text + held.drafts[:unseen] == text)
        pool = self.states.device
        for name, slot in pool._block_of.items():
            state = self.device[slot].text
            assert len(state) % self.size == 0, "a snapshot stands at the end of a block"
            assert hash_blocks(b"", state, self.size)[-1] == name
        assert self.allocator.audit(self.texts) == []


TestStates = pytest.mark.filterwarnings("ignore")(StatesMachine.TestCase)
TestStates.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
