"""Steps that only decode, taken together: exactly what as many steps of the scheduler would do.

A simulated token says only which branch it belongs to. So nothing has to be known of a step but
who takes a block in it, and who fills one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from quire.capacity import EngineLimits
from quire.memory import KVAllocator, Usage
from quire.protocol import Chunk, Progress, Readout, SchedulingPolicy, Step, Verdict
from quire.scheduling import Scheduler
from quire.scheduling.sequence import Sequence, SequenceGroup

_NEXT = Readout()  # one sample, after the last token
_TAKE, _FILL = 0, 1
_Event = tuple[int, int, int]
"""What a step does beside adding a token to each branch, in the order in which it does it:
(place of the group, _TAKE a block or _FILL one, place of the branch among all)."""

_NEAR = 16  # tokens; to look further for where a region ends costs more than to begin anew

Member = tuple[int, SequenceGroup, Sequence]
"""Number of the group, the group, a branch of it."""


class FastForward:
    """Tells when the scheduler's next steps only decode. It must be told of every step."""

    def __init__(self, scheduler: Scheduler, limits: EngineLimits) -> None:
        self._scheduler = scheduler
        self._is_paged = limits.is_paged
        self._has_windows = any(kv_group.window is not None for kv_group in limits.kv_groups)
        # Whether who is next may change though nobody comes or ends, or it may be passed.
        fair = limits.scheduling_policy == SchedulingPolicy.FAIR.value
        self._time_matters = fair or limits.max_queue_time is not None or limits.max_loras > 0
        self._blocked: str | None = None  # kept waiting by the last step, and nothing freed since
        self._may_fork = False  # the last step may have led to forks, whose moves are to come

    def note(self, step: Step, progress: Iterable[Progress]) -> None:
        """The scheduler has made this step, and this came of it."""
        waits = [d.request_id for d in step.decisions if d.what is Verdict.WAIT]
        ended = any(one.finish_reason is not None for one in progress)
        self._blocked = waits[-1] if waits and not ended else None
        self._may_fork = any(chunk.readout != _NEXT for chunk in step.chunks)

    def begin(self) -> SteadyDecoding | None:
        """Steps that only decode, to be taken together; None if the next step is none of them."""
        scheduler = self._scheduler
        first = scheduler.queue.first()
        if first is not None and (self._time_matters or first.request.request_id != self._blocked):
            return None
        # Windows give blocks back as sequences grow.
        if self._has_windows or self._may_fork or scheduler.sessions:
            return None
        members = _members(scheduler.running)
        budget = scheduler.max_num_batched_tokens - (first is not None)  # what is left is offered
        if not members or len(members) > budget:
            return None
        rooms = self._rooms(members)
        return None if rooms is None else SteadyDecoding(scheduler, members, rooms, self._is_paged)

    def _rooms(self, members: Seq[Member]) -> list[int] | None:
        """Tokens that each branch can add where it is; None if one needs more than a new block."""
        allocator = self._scheduler.allocator
        if not self._is_paged:
            return _rooms_in_regions(allocator, members)
        if allocator.usage().reserved:
            return None  # tokens that are promised are counted elsewhere
        rooms = [-branch.num_computed % allocator.block_size for _, _, branch in members]
        takes = allocator.blocks_to_append({branch.seq_id: 1 for _, _, branch in members})
        return rooms if takes == rooms.count(0) else None  # else some are copied first


def _members(running: Seq[SequenceGroup]) -> list[Member]:
    """All branches; none if one of them does anything but decode."""
    members = []
    for number, group in enumerate(running):
        if not group.expanded or group.beams is not None:
            return []
        for branch in group.branches:
            if branch.fork_from is not None or branch.num_pending != 1:
                return []
            members.append((number, group, branch))
    return members


def _rooms_in_regions(allocator: KVAllocator, members: Seq[Member]) -> list[int] | None:
    """Tokens that each branch can add to its region, or the next few; None if one must move."""
    # A request was admitted for no more than its limit.
    left = [group.request.max_tokens - branch.num_output_tokens for _, group, branch in members]
    seq_ids = [branch.seq_id for _, _, branch in members]
    if not allocator.blocks_to_append(dict(zip(seq_ids, left, strict=True))):
        return left
    rooms = []
    for seq_id, most in zip(seq_ids, left, strict=True):
        room = min(most, _NEAR)
        while room and allocator.blocks_to_append({seq_id: room}):
            room //= 2
        if not room:
            return None
        rooms.append(room)
    return rooms


class SteadyDecoding:
    """Every running branch gets one token a step; nobody comes, ends, forks or gives way.

    What a branch is in the midst of a block is worked out when it comes to the block's end, or
    when this is closed. Until then, only this may use the scheduler and its allocator.
    """

    def __init__(
        self, scheduler: Scheduler, members: Seq[Member], rooms: Seq[int], is_paged: bool
    ) -> None:
        """rooms: tokens that each of the members can add before it takes a block or a region."""
        self.num_steps = 0
        self.members = members  # in line
        self.branches = [branch for _, _, branch in members]
        self.num_context_tokens = sum(len(branch.token_ids) for branch in self.branches)
        self._allocator = scheduler.allocator
        self._publishes = scheduler.enable_prefix_caching
        self._is_paged = is_paged
        waits = scheduler.queue.num_waiting > 0
        self._waits: Counter[str] | None = scheduler.stats.decisions if waits else None
        self._settled = [0] * len(members)  # steps that the allocator knows of, by branch
        self._ahead = 0  # tokens that the allocator does not know of
        self._known: Usage | None = None  # by the allocator; None: to be asked
        self._events: dict[int, list[_Event]] = {}  # by the step that they are part of
        for place, room in enumerate(rooms):
            self._plan(place, 0, room)

    @property
    def num_sure(self) -> int:
        """Steps that can be taken, whatever they take: no branch takes two blocks in as many."""
        allocator = self._allocator
        if self._is_paged and allocator.num_free_blocks >= len(self.members):
            return allocator.block_size
        return 1

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
        known, ahead = self._known, self._ahead
        if known is None:
            known = self._known = self._allocator.usage()
        used, reserved, internal, *free = known
        promised = min(ahead, reserved)
        return Usage(used + ahead, reserved - promised, internal - ahead + promised, *free)

    def close(self, ending: frozenset[int]) -> list[Chunk]:
        """Bring all up to date with the steps taken. No more can be taken.

        ending: sequences that end with the token which the last step samples. Their part of that
        step has been planned, and their chunks are returned: ``update`` must be given them.
        """
        steps, chunks = self.num_steps, []
        for (_, group, branch), settled in zip(self.members, self._settled, strict=True):
            if settled < steps:
                self._append(branch, steps - settled)
            known = branch.num_computed + steps
            if branch.seq_id in ending:
                known -= 1
                table = self._allocator.table(branch.seq_id)
                token, prompt = [branch.token_ids[-1]], branch.num_prompt_tokens
                chunks.append(Chunk(branch.seq_id, token, known, table, prompt, _NEXT))
            branch.num_computed = known
            _reach(branch, known + 1)
            if group.branches[-1] is branch:
                group.memory.hold(*self._allocator.blocks_held(group.tables()))
        if self._waits is not None:
            self._waits[Verdict.WAIT.value] += steps
        self._allocator.settle()
        return chunks

    def _can_take(self, events: Seq[_Event]) -> bool:
        if self._is_paged and len(events) <= self._allocator.num_free_blocks:
            return True
        takers = sum(kind == _TAKE for _, kind, _ in events)
        return not takers or (self._is_paged and takers <= self._allocator.num_free_blocks)

    def _take(self, place: int) -> None:
        """With all that the branch has added to the block before."""
        count = self.num_steps + 1 - self._settled[place]
        self._append(self.branches[place], count)
        self._settled[place] += count
        self._ahead -= count  # this step's token is known already
        self._plan(place, self.num_steps + 1, self._allocator.block_size - 1)

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

    def _append(self, branch: Sequence, count: int) -> None:
        moves = self._allocator.append({branch.seq_id: count})
        assert moves == [], "there is room where it is, or in a free block"
        self._known = None


def _reach(branch: Sequence, num_tokens: int) -> None:
    """Give the branch tokens up to so many. It says one again and again: see ``own_token``."""
    token_ids = branch.token_ids
    missing = num_tokens - len(token_ids)
    if missing > 0:
        token_ids.extend(token_ids[-1:] * missing)
