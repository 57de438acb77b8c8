"""Branches that only decode, in steps that need not look at each of them.

A simulated token only says which branch it belongs to. So of a step only four things must be
known: which branches take a block or give one back, which fill one, what all of them see together,
and which texts end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from quire.core.limits import EngineLimits
from quire.core.memory import BlockMove, BlockTable, KVAllocator, Usage
from quire.core.protocol import Chunk, Readout
from quire.core.scheduling import Scheduler
from quire.core.scheduling.sequence import Sequence, SequenceGroup
from quire.engine.work import Decoders, sights_of
from quire_lab.simulation.live import LiveRequest
from quire_lab.simulation.seen_tokens import SeenTokens
from quire_lab.simulation.steady_room import SteadyRoom

NEXT = Readout()
"""One sample, after the last token."""

_TAKE, _FILL = 0, 1
_Event = tuple[int, int, int]
"""What a step does beside adding a token to each branch, in the order in which it does it:
(number of the group, _TAKE blocks and give back others or _FILL one, number of the row)."""

_NEAR = 16  # tokens; to look further for where a region ends costs more than to begin anew


@dataclass(slots=True, eq=False)
class SteadyRow:
    """One branch. Steps are counted from the beginning of the ``SteadyDecoding``.

    first: steps that had been taken when it came. known: tokens it had computed then.
    end: steps after which its text is complete. settled: steps that the allocator knows of.
    """

    number: int
    group_number: int
    live: LiveRequest
    group: SequenceGroup
    branch: Sequence
    first: int
    known: int
    end: int
    settled: int


class SteadyDecoding:
    """The first groups in the queue, which get a token for each branch in every step.

    A branch's state within a block is computed when it comes to the block's end, when its text
    ends, or when this is closed. Until then nothing else may use these groups.
    """

    def __init__(
        self, scheduler: Scheduler, live: Mapping[str, LiveRequest], limits: EngineLimits
    ) -> None:
        self.num_steps = 0
        self.num_appends = (
            0  # in the allocator, whose slots have not changed as long as this has not
        )
        self.seen = SeenTokens(sights_of(limits.kv_groups))
        self._scheduler = scheduler
        self._live = live
        self._allocator: KVAllocator = scheduler.allocator
        self._cache = scheduler.prefix_cache
        self._room = SteadyRoom(scheduler.allocator, limits, is_named=self._cache is not None)
        self._windows = [one.window for one in limits.kv_groups if one.window is not None]
        self._rows: dict[int, SteadyRow] = {}  # in the queue, by number
        self._groups: Counter[SequenceGroup] = Counter()  # rows of each, in the queue's order
        self._numbers = 0  # rows that there have been
        self._group_numbers = 0
        self._ahead = 0  # tokens that the allocator does not know of
        self._events: dict[int, list[_Event]] = {}  # by the step that they are part of
        self._ends: dict[int, list[SteadyRow]] = {}  # by the number of steps

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def num_groups(self) -> int:
        return len(self._groups)

    @property
    def work(self) -> Decoders:
        """Its part of the next step."""
        return Decoders(len(self._rows), (*self.seen.totals,))

    @property
    def next_end(self) -> int:
        """Steps after which some text is complete."""
        return min(self._ends)

    def join(self, now: float) -> bool:
        """Take in the groups behind these that do nothing but decode from now on, up to one that
        does something else. False: these do not stand before all others any more.

        now: when the last step was over, which has given each of them a token.
        """
        running, count = self._scheduler.running, len(self._groups)
        if count and (
            len(running) < count or running[count - 1] is not next(reversed(self._groups))
        ):
            return False
        for group in running[count:]:
            live = self._live[group.request.request_id]
            if not only_decodes(group) or not live.has_token_of(now):
                break
            rooms = self._rooms(group)
            if rooms is None:
                break
            self._add(group, live, rooms)
        return True

    def _add(self, group: SequenceGroup, live: LiveRequest, rooms: Seq[int]) -> None:
        self._group_numbers += 1
        steps = self.num_steps
        for branch, room in zip(group.branches, rooms, strict=True):
            self._numbers += 1
            end = steps + live.output_tokens - branch.num_output_tokens
            row = SteadyRow(
                self._numbers, self._group_numbers, live, group, branch, steps,
                branch.num_computed, end, steps,
            )  # fmt: skip
            self._rows[row.number] = row
            self._groups[group] += 1
            self._ends.setdefault(end, []).append(row)
            self.seen.add(len(branch.token_ids), steps)
            self._plan_fill(row, steps, room)
            # A window has left behind what the prompt's last chunk saw.
            self._plan_take(row, steps, 0 if self._windows else room)

    def _rooms(self, group: SequenceGroup) -> list[int] | None:
        """Tokens that each branch can add where it is; None if one needs more than a new block."""
        if not self._room.is_paged:
            return _rooms_in_regions(self._allocator, group)
        rooms = [-branch.num_computed % self._allocator.block_size for branch in group.branches]
        new_tokens = {branch.seq_id: 1 for branch in group.branches}
        return rooms if self._room.takes_only(rooms.count(0), new_tokens) else None

    # -- steps ---------------------------------------------------------------------------------

    @property
    def num_sure(self) -> int:
        """Steps that can be taken, whatever they take: no branch takes two blocks in as many."""
        many = not self._room.copies_states and self._room.is_sure(len(self._rows))
        return self._allocator.block_size if many else 1

    @property
    def can_step(self) -> bool:
        """Whether there is room for one more step."""
        events = self._events.get(self.num_steps)
        if events is None or self._room.is_sure(len(events)):
            return True
        takers = [row for row in map(self._rows.get, _takers(events)) if row is not None]
        steps = self.num_steps + 1
        return not takers or self._room.has(
            {row.branch.seq_id: steps - row.settled for row in takers}
        )

    @property
    def copies(self) -> bool:
        """Whether the next step copies a state, before it is written over."""
        if not self._room.copies_states:
            return False
        rows = map(self._rows.get, _takers(self._events.get(self.num_steps, ())))
        return any(row is not None and self._room.must_copy(row.branch.seq_id) for row in rows)

    def step(self, now: float) -> list[BlockMove]:
        """One more step, planned at ``now``; what it copies."""
        self._allocator.advance(now)
        if self._cache is not None and not self._cache.settled:
            self._cache.settle()
        moves: list[BlockMove] = []
        events = self._events.pop(self.num_steps, None)
        if events is not None:
            events.sort()
            takers: list[SteadyRow] = []  # of one group
            for _, kind, number in events:
                row = self._rows.get(number)
                if row is None:
                    continue
                if takers and (kind == _FILL or row.group is not takers[0].group):
                    moves += self._take(takers)
                    takers = []
                if kind == _FILL:
                    self._fill(row)
                else:
                    takers.append(row)
            if takers:
                moves += self._take(takers)
        self.num_steps += 1
        self._ahead += len(self._rows)
        self.seen.step(self.num_steps)
        return moves

    def told(self) -> Usage:
        """The pool's slots, as far as the allocator knows."""
        return self._allocator.usage()

    def usage(self, told: Usage) -> Usage:
        """The pool's slots during the step taken last."""
        ahead = self._ahead * self._room.slots_of_token
        used, reserved, internal, *free = told
        promised = 0 if self._room.is_paged else ahead  # regions are promised to them
        return Usage(used + ahead, reserved - promised, internal - ahead + promised, *free)

    def gaps(self, start: float, end: float) -> dict[float, int]:
        """For the last step, from ``start`` to ``end``: times since the last token of the branches
        that continue, and how often each occurs.
        """
        return {end - start: len(self._rows) - len(self._ends.get(self.num_steps, ()))}

    def finish(self, start: float) -> list[Chunk]:
        """Release the groups whose texts are complete by the last step, which began at ``start``.

        Their part of that step has been planned, and their chunks are returned: ``update`` must be
        given them.
        """
        return [self._finish(row, start) for row in self._ends.pop(self.num_steps, ())]

    def _finish(self, row: SteadyRow, start: float) -> Chunk:
        branch, table = row.branch, self._settle(row, self.num_steps - 1)
        row.live.num_output_tokens += self.num_steps - 1 - row.first
        row.live.last_times[branch.index] = start
        del self._rows[row.number]
        self._groups[row.group] -= 1
        if not self._groups[row.group]:
            del self._groups[row.group]
        self.seen.remove(len(branch.token_ids) + 1, self.num_steps)
        token, prompt = [branch.token_ids[-1]], branch.num_prompt_tokens
        return Chunk(branch.seq_id, token, branch.num_computed, table, prompt, NEXT)

    def close(self, now: float, *, lost: bool = False) -> None:
        """Bring all up to date with the steps taken, which are over at ``now``.

        lost: but the last, which will never be.
        """
        told = self.num_steps - lost
        for row in self._rows.values():
            self._settle(row, self.num_steps)
            if told > row.first:
                row.live.num_output_tokens += told - row.first
                row.live.last_times[row.branch.index] = now

    def _settle(self, row: SteadyRow, steps: int) -> BlockTable:
        """Bring a row up to date with these steps; and the allocator with all of them."""
        branch, group = row.branch, row.group
        self._append(row, self.num_steps)
        branch.num_computed = row.known + steps - row.first
        _reach(branch, branch.num_computed + 1)
        self._hold(group)
        return self._allocator.table(branch.seq_id)

    def _take(self, rows: Seq[SteadyRow]) -> list[BlockMove]:
        """Let rows of a group take blocks for this step, and give back what they see no more."""
        steps, group, size = self.num_steps, rows[0].group, self._allocator.block_size
        leave = any(map(self._leaves, rows))
        if leave:  # as the next token comes, not before
            self._hold(group)
            for row in rows:
                self._append(row, steps)
        new_tokens = {row.branch.seq_id: steps + 1 - row.settled for row in rows}
        moves = self._allocator.append(new_tokens)
        assert moves is not None, "there is room"
        self.num_appends += 1
        self._ahead -= sum(new_tokens.values())
        for row in rows:
            row.settled = steps + 1
            room = (row.first - row.known - row.settled) % size
            if room == size - 1:
                self._plan_fill(row, row.settled, room)
            self._plan_take(row, row.settled, room)
        if moves or leave:
            group.memory.copied_blocks += len(moves)
            self._hold(group)
        return moves

    def _leaves(self, row: SteadyRow) -> bool:
        """Whether a window of its leaves another block behind in this step."""
        size, position = self._allocator.block_size, row.known + self.num_steps - row.first
        return any(
            one.left_behind(position, size) > one.left_behind(position - 1, size)
            for one in self._windows
        )

    def _hold(self, group: SequenceGroup) -> None:
        group.memory.hold(*self._allocator.blocks_held(group.tables()))

    def _plan_take(self, row: SteadyRow, step: int, room: int) -> None:
        """Note when the branch takes the next block, or leaves one behind."""
        size, position = self._allocator.block_size, row.known + step - row.first
        for window in self._windows:
            gone = window.left_behind(position - 1, size)
            room = min(room, max(0, window.leaves_at(gone, size) - position))
        self._events.setdefault(step + room, []).append((row.group_number, _TAKE, row.number))

    def _plan_fill(self, row: SteadyRow, step: int, room: int) -> None:
        """Note when the branch fills its last block."""
        fill = step + room - (self._allocator.block_size > 1)
        if self._cache is not None and fill >= step:
            self._events.setdefault(fill, []).append((row.group_number, _FILL, row.number))

    def _fill(self, row: SteadyRow) -> None:
        """Others may find the block that this step fills."""
        assert self._cache is not None, "else nothing is planned to fill"
        self._append(row, self.num_steps + 1)  # they share it, and must not seem to be written over
        end = row.known + self.num_steps + 1 - row.first
        _reach(row.branch, end)
        self._cache.publish(row.group, row.branch, end - 1, end)

    def _append(self, row: SteadyRow, steps: int) -> None:
        """Append the tokens of these steps in the allocator."""
        count = steps - row.settled
        if count:
            moves = self._allocator.append({row.branch.seq_id: count})
            assert moves == [], "there is room where it is, or in a free block"
            row.settled = steps
            self.num_appends += 1
            self._ahead -= count


def only_decodes(group: SequenceGroup) -> bool:
    """Whether each of its branches has one token to compute, and samples the next."""
    if not group.expanded or group.beams is not None:
        return False
    return all(
        branch.fork_from is None and len(branch.token_ids) - branch.num_computed == 1
        for branch in group.branches
    )


def _rooms_in_regions(allocator: KVAllocator, group: SequenceGroup) -> list[int] | None:
    """Tokens that each branch can add to its region, or the next few; None if one must move."""
    # A request was admitted for no more than its limit.
    rooms = []
    for branch in group.branches:
        most = group.request.max_tokens - branch.num_output_tokens
        room = most if not allocator.blocks_to_append({branch.seq_id: most}) else min(most, _NEAR)
        while room and allocator.blocks_to_append({branch.seq_id: room}):
            room //= 2
        if not room:
            return None
        rooms.append(room)
    return rooms


def _reach(branch: Sequence, num_tokens: int) -> None:
    """Give the branch tokens up to this count. It repeats one: see ``own_token``."""
    token_ids = branch.token_ids
    missing = num_tokens - len(token_ids)
    if missing > 0:
        token_ids.extend(token_ids[-1:] * missing)


def _takers(events: Iterable[_Event]) -> Iterator[int]:
    return (number for _, kind, number in events if kind == _TAKE)
