"""Steps that only decode, taken together: exactly what as many steps of the scheduler would do.

For simulations, where a token says only which branch it belongs to: branch ``i`` gets tokens ``i``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq

from quire.memory import KVAllocator, Usage
from quire.scheduling.decision import Verdict
from quire.scheduling.sequence import Sequence, SequenceGroup
from quire.scheduling.step import Chunk, Readout

_TAKE, _FILL = 0, 1
_Event = tuple[int, int, int]
"""What a step does beside adding a token to each branch, in the order in which it does it:
(place of the group, _TAKE a block or _FILL one, place of the branch among all)."""


class SteadyDecoding:
    """Every running branch gets one token a step; nobody comes, ends, forks or gives way.

    What a branch is in the midst of a block is worked out when it comes to the block's end, or
    when this is closed. Until then, only this may use the scheduler and its allocator.
    """

    def __init__(
        self,
        members: list[tuple[int, SequenceGroup, Sequence]],
        rooms: list[int],
        allocator: KVAllocator,
        publishes: bool,
        waits: Counter[str] | None,
    ) -> None:
        self.num_steps = 0
        self.members = members  # (number of the group, the group, a branch), in line
        self.branches = [branch for _, _, branch in members]
        self.num_context_tokens = sum(len(branch.token_ids) for branch in self.branches)
        self._allocator = allocator
        self._publishes = publishes
        self._waits = waits
        self._settled = [0] * len(members)  # steps that the allocator knows of, by branch
        self._ahead = 0  # tokens that the allocator does not know of
        self._events: dict[int, list[_Event]] = {}  # by the step that they are part of
        for place, room in enumerate(rooms):
            self._plan(place, 0, room)

    @classmethod
    def begin(
        cls,
        running: Seq[SequenceGroup],
        allocator: KVAllocator,
        budget: int,
        publishes: bool,
        waits: Counter[str] | None,
    ) -> SteadyDecoding | None:
        """None if the next step is not of this kind.

        budget: tokens of a step. publishes: full blocks can be found by content.
        waits: decisions to count a wait in for every step; None where nobody waits.
        """
        members, rooms = [], []
        for number, group in enumerate(running):
            if not group.expanded or group.beams is not None:
                return None
            for branch in group.branches:
                if branch.fork_from is not None or branch.num_pending != 1:
                    return None
                room = allocator.room(branch.seq_id)
                if room is None:
                    return None
                members.append((number, group, branch))
                rooms.append(room)
        if not members or len(members) > budget or (waits is not None and len(members) == budget):
            return None
        return cls(members, rooms, allocator, publishes, waits)

    def step(self, now: float) -> bool:
        """One more step, planned at ``now``. False, and nothing has changed: not of this kind."""
        events = self._events.get(self.num_steps)
        if events is not None:
            events.sort()
            if not self._can_take(events):
                return False
            del self._events[self.num_steps]
            self._allocator.advance(now)
            for _, kind, place in events:
                if kind == _TAKE:
                    self._take(place)
                else:
                    self._fill(place)
        self.num_steps += 1
        self._ahead += len(self.members)
        return True

    def usage(self) -> Usage:
        """The pool's slots during the step taken last."""
        return self._allocator.usage(self._ahead)

    def close(self, ending: frozenset[int]) -> list[Chunk]:
        """Bring all up to date with the steps taken. No more can be taken.

        ending: sequences that end with the token which the last step samples. Their part of that
        step has been planned, and their chunks are returned: ``update`` must be given them.
        """
        steps, chunks = self.num_steps, []
        for place, (_, _, branch) in enumerate(self.members):
            self._catch_up(place, steps)
            known = branch.num_computed + steps
            if branch.seq_id in ending:
                known -= 1
                table = self._allocator.table(branch.seq_id)
                prompt = branch.num_prompt_tokens
                chunks.append(Chunk(branch.seq_id, [branch.index], known, table, prompt, Readout()))
            branch.num_computed = known
            _reach(branch, known + 1)
        for group in dict.fromkeys(group for _, group, _ in self.members):
            group.memory.hold(*self._allocator.blocks_held(group.tables()))
        if self._waits is not None:
            self._waits[Verdict.WAIT.value] += steps
        self._allocator.settle()
        return chunks

    def _can_take(self, events: Seq[_Event]) -> bool:
        takers = [place for _, kind, place in events if kind == _TAKE]
        if len(takers) > self._allocator.num_free_blocks:
            return False
        for place in takers:
            self._catch_up(place, self.num_steps)
        return all(self._allocator.room(self.branches[place].seq_id) == 0 for place in takers)

    def _take(self, place: int) -> None:
        seq_id = self.branches[place].seq_id
        moves = self._allocator.append({seq_id: 1})
        assert moves == [], "room() said that the next token takes a free block"
        self._settled[place] += 1
        self._ahead -= 1  # the allocator knows of this step's token already
        room = self._allocator.room(seq_id)
        assert room is not None
        self._plan(place, self.num_steps + 1, room)

    def _plan(self, place: int, step: int, room: int) -> None:
        """Note when the branch fills its last block, and when it takes the next one."""
        group, take = self.members[place][0], step + room
        self._events.setdefault(take, []).append((group, _TAKE, place))
        if self._publishes:
            fill = take if self._allocator.block_size == 1 else take - 1
            if fill >= step:
                self._events.setdefault(fill, []).append((group, _FILL, place))

    def _fill(self, place: int) -> None:
        """Others may find the block that this step fills."""
        branch, size = self.branches[place], self._allocator.block_size
        end = branch.num_computed + self.num_steps + 1
        _reach(branch, end)
        branch.hash_blocks(size)
        self._allocator.commit(branch.seq_id, branch.block_hashes, end // size)

    def _catch_up(self, place: int, steps: int) -> None:
        count = steps - self._settled[place]
        if count:
            self._allocator.extend(self.branches[place].seq_id, count)
            self._settled[place] = steps
            self._ahead -= count


def _reach(branch: Sequence, num_tokens: int) -> None:
    """Give the branch tokens up to so many."""
    branch.token_ids.extend([branch.index] * (num_tokens - len(branch.token_ids)))
