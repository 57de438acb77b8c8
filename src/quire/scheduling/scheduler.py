"""Iteration-level scheduling over paged memory (Orca, OSDI 2022; PagedAttention, section 4.5).

There is no prefill phase and no decode phase: every sequence has tokens to catch up on, and each
step hands out a budget of tokens, first come first served. Time is an argument.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from enum import Enum

from quire.errors import RequestError
from quire.memory import BlockMove, Demand, Fit, KVAllocator, MoveKind, When
from quire.scheduling.branching import grant, next_fork
from quire.scheduling.decision import Decision, Verdict
from quire.scheduling.decoding import Candidates, LiveGroups
from quire.scheduling.preemption import Preemption
from quire.scheduling.request import Request
from quire.scheduling.sequence import Sequence, SequenceGroup, Status
from quire.scheduling.stats import SchedulerStats
from quire.scheduling.steady import SteadyDecoding
from quire.scheduling.step import Chunk, Progress, Step, StepResult

PRIORITY_SECONDS = 10.0
"""Under the priority policy, one level of priority is worth this much waiting. Whoever waits moves
up in line relative to newcomers, so nobody starves."""


class SchedulingPolicy(str, Enum):
    FCFS = "fcfs"
    PRIORITY = "priority"


class Scheduler:
    """Decides what each step computes, and who waits, runs or gives way.

    Groups stand in one line: by arrival, or by priority and arrival. When the running ones cannot
    all grow, the last in line is preempted, by swap or by recompute, and comes back before anyone
    behind it is admitted. The first in line is never held back by the others, and since a request
    that could not finish alone in the pool is refused by ``add``, every request ends.
    """

    def __init__(
        self,
        allocator: KVAllocator,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        enable_prefix_caching: bool = True,
        policy: SchedulingPolicy = SchedulingPolicy.FCFS,
        preemption: Preemption | None = None,
    ) -> None:
        self.allocator = allocator
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.enable_prefix_caching = enable_prefix_caching
        self.policy = policy
        self.waiting: list[SequenceGroup] = []
        self.running: list[SequenceGroup] = []  # both in line
        self.stats = SchedulerStats()
        self._blocked: SequenceGroup | None = None  # kept waiting by the last step, nothing freed
        self._preemption = preemption or Preemption(allocator)
        self._live = LiveGroups(allocator)

    # -- requests ------------------------------------------------------------------------------

    def add(self, request: Request) -> SequenceGroup:
        """Queue a request, or refuse it (RequestError) if it could never run to its end."""
        try:
            self._refuse_impossible(request)
        except RequestError:
            self.stats.decisions[Verdict.REFUSE.value] += 1
            raise
        rank = 0.0
        if self.policy is SchedulingPolicy.PRIORITY:
            rank = request.arrival + PRIORITY_SECONDS * request.priority
        group = self._live.add(request, rank)
        insort(self.waiting, group, key=_place)
        return group

    def abort(self, request_id: str, *, spoiled: bool = False) -> bool:
        """End a request and free its blocks; False if there is none of that id.

        ``spoiled``: a step failed, so its blocks do not hold what they should.
        """
        group = self._live.get(request_id)
        if group is None:
            return False
        self._blocked = None
        for branch in list(group.branches):
            self._live.end(group, branch, spoiled=spoiled)
        self._leave(group)
        return True

    def finish(self, seq_id: int) -> None:
        """End one branch: its text is complete (a stop string, which only the text shows)."""
        known = self._live.branch(seq_id)
        if known is not None:
            self._blocked = None
            self._live.end(*known)
            if not known[0].branches:
                self._leave(known[0])

    def group(self, request_id: str) -> SequenceGroup | None:
        return self._live.get(request_id)

    @property
    def has_work(self) -> bool:
        return len(self._live) > 0

    @property
    def num_running_seqs(self) -> int:
        return sum(group.width for group in self.running)

    # -- one iteration -------------------------------------------------------------------------

    def schedule(self, now: float) -> Step:
        """The next step. Empty only if there is nothing to do."""
        self.allocator.advance(now)
        self.allocator.settle()
        self._blocked = None
        step = Step(self._live.take_fork_moves(), [], [])
        budget = self._grow_running(step)
        if not any(decision.what.preempts for decision in step.decisions):
            self._admit_waiting(step, budget)
        for decision in step.decisions:
            self.stats.decisions[decision.what.value] += 1
        return step

    def update(self, step: Step, result: StepResult, now: float) -> list[Progress]:
        """Take in what a step gave. Chunks of sequences that have ended since are skipped."""
        self.allocator.advance(now)
        self.spoil(result.failed_moves)
        progress: list[Progress] = []
        searching: dict[str, Candidates] = {}
        for chunk in step.chunks:
            known = self._live.branch(chunk.seq_id)
            if known is None or known[0].status is not Status.RUNNING:
                continue
            group, branch = known
            branch.num_computed += len(chunk.token_ids)
            if group.expanded and not chunk.num_samples:
                self._live.wake_forks(group, branch)
            if chunk.num_samples:
                progress += self._live.sample(group, branch, result.samples[chunk.seq_id])
            elif chunk.num_candidates:
                found = searching.setdefault(chunk.request.request_id, {})
                found[chunk.seq_id] = result.candidates[chunk.seq_id]
        for request_id, candidates in searching.items():
            searched = self._live.get(request_id)
            if searched is not None:
                progress += self._live.search(searched, candidates)
        if any(one.finish_reason is not None for one in progress):
            self._blocked = None
            self.running = [group for group in self.running if group.branches]
        return progress

    def spoil(self, moves: Iterable[BlockMove]) -> None:
        """These moves did not take place: whoever relied on them computes its tokens again."""
        lost = {(move.kind, move.lane, move.target) for move in moves}
        if not lost:
            return
        self._blocked = None
        for status, kind in (
            (Status.SWAPPED, MoveKind.SWAP_OUT),
            (Status.RUNNING, MoveKind.SWAP_IN),
        ):
            for group in [*self.running, *self.waiting]:
                tables = (self.allocator.table(i).lanes for i in group.tables())
                held = (
                    (i, b) for lanes in tables for i, t in enumerate(lanes) for b in t.block_ids
                )
                if group.status is status and any((kind, *place) in lost for place in held):
                    self._preemption.forget(group, spoiled=True)
                    self._leave(group)
                    insort(self.waiting, group, key=_place)

    def steady(self) -> SteadyDecoding | None:
        """Steps that only decode, to be taken together, if the next step is one of them."""
        if self.waiting and self.waiting[0] is not self._blocked:
            return None
        if self._live.has_fork_moves:
            return None
        waits = self.stats.decisions if self.waiting else None
        return SteadyDecoding.begin(
            self.running,
            self.allocator,
            self.max_num_batched_tokens,
            self.enable_prefix_caching,
            waits,
        )

    # -- growing -------------------------------------------------------------------------------

    def _grow_running(self, step: Step) -> int:
        """Chunks for the running groups, preempting from the back; the budget left over."""
        budget = self.max_num_batched_tokens
        position = 0
        while position < len(self.running) and budget:
            group = self.running[position]
            wants = grant(group, budget)
            moves = self.allocator.append(wants)
            if moves is None:
                victim = self.running.pop()
                decision, swaps = self._preemption.preempt(victim, group, wants)
                step.decisions.append(decision)
                step.moves.extend(swaps)
                insort(self.waiting, victim, key=_place)
                continue  # with this group again, unless it was the last and had to go itself
            budget -= self._add_chunks(group, wants, moves, step)
            position += 1
        return budget

    def _add_chunks(
        self, group: SequenceGroup, wants: dict[int, int], moves: list[BlockMove], step: Step
    ) -> int:
        """Chunks for tokens that the allocator has made room for; how many tokens."""
        if moves:
            step.moves.extend(moves)
            group.memory.copied_blocks += len(moves)
        if len(group.branches) == 1:  # most groups
            (tokens,) = wants.values()
            chunk = self._chunk(group, group.branches[0], tokens)
            step.chunks.append(chunk)
            table = chunk.table
            held = len(table.block_ids)
            if table.further:
                held += sum(len(other.block_ids) for other in table.further)
            group.memory.hold(held, 0)
            return tokens
        for branch in group.branches:
            if branch.seq_id in wants:
                step.chunks.append(self._chunk(group, branch, wants[branch.seq_id]))
        group.memory.hold(*self.allocator.blocks_held(group.tables()))
        return sum(wants.values())

    def _chunk(self, group: SequenceGroup, branch: Sequence, tokens: int) -> Chunk:
        request, start = group.request, branch.num_computed
        end, size = start + tokens, self.allocator.block_size
        if self.enable_prefix_caching and end // size > start // size:
            # Others may find the blocks that this step fills, from this step on.
            branch.hash_blocks(size)
            self.allocator.commit(branch.seq_id, branch.block_hashes[: end // size])
        samples = candidates = 0
        if end == len(branch.token_ids):
            if group.beams is not None:
                candidates = group.beams.num_candidates
            else:
                samples = 1 if group.expanded else request.params.width
        history: tuple[int, ...] = ()
        if request.params.needs_history:
            history = tuple(branch.token_ids[branch.num_prompt_tokens :])
        return Chunk(
            branch.seq_id,
            request,
            branch.index,
            branch.token_ids[start:end],
            start,
            self.allocator.table(branch.seq_id),
            samples,
            history,
            candidates,
        )

    # -- admission -----------------------------------------------------------------------------

    def _admit_waiting(self, step: Step, budget: int) -> None:
        if not self.waiting:
            return
        running = self.num_running_seqs
        while self.waiting and budget:
            group = self.waiting[0]
            spare = self.max_num_seqs - running
            if group.width > spare:
                self._wait(group, step, "max_num_seqs sequences are running", group.width, spare)
                return
            resumed = group.status is Status.SWAPPED
            if not (self._resume if resumed else self._admit)(group, running, step):
                return
            group.status = Status.RUNNING
            insort(self.running, self.waiting.pop(0), key=_place)
            running += group.width
            wants = grant(group, budget)
            moves = self.allocator.append(wants)
            if moves is None:
                # Back from the host, it is one of the running that must find room to grow: in the
                # next step, by preempting others if it comes before them.
                assert resumed, "admission left room for these tokens"
                return
            budget -= self._add_chunks(group, wants, moves, step)

    def _resume(self, group: SequenceGroup, running: int, step: Step) -> bool:
        headroom = running + group.width if running else 0
        moves = self._preemption.restore(group, headroom)
        if moves is None:
            free = self.allocator.num_free_blocks
            self._wait(group, step, "not enough free blocks to swap in", None, free)
            return False
        step.moves.extend(moves)
        why = f"{len(moves)} blocks swapped in"
        step.decisions.append(Decision(Verdict.RESUME, group.request.request_id, why))
        return True

    def _admit(self, group: SequenceGroup, running: int, step: Step) -> bool:
        trunk = group.branches[0]
        # Every running sequence may take one more block before any gives one back.
        demand = self._demand(group, headroom=running)
        fit = self.allocator.fit(demand)
        cached = self.allocator.admit(trunk.seq_id, demand)
        if cached is None:
            self._wait(group, step, "not enough free blocks", fit.needed, fit.free)
            return False
        why = f"{cached} of {demand.num_tokens} tokens cached"
        step.decisions.append(
            Decision(Verdict.ADMIT, group.request.request_id, why, fit.needed, fit.free)
        )
        trunk.num_computed = cached
        group.status = Status.RUNNING
        self._live.wake_forks(group, trunk)  # the cached tokens may end where a branch forks off
        if not group.ever_admitted:
            group.ever_admitted = True
            group.memory.cached_tokens = cached
            self._count_prefix(demand, fit)
        return True

    def _wait(
        self, group: SequenceGroup, step: Step, why: str, needed: int | None, free: int
    ) -> None:
        remedy = "a larger max_num_seqs" if "max_num_seqs" in why else "a larger KV pool"
        decision = Decision(
            Verdict.WAIT, group.request.request_id, why, needed, free, remedy=remedy
        )
        step.decisions.append(decision)
        self._blocked = group

    def _demand(self, group: SequenceGroup, headroom: int) -> Demand:
        trunk, request = group.branches[0], group.request
        hashes: list[bytes] = []
        if self.enable_prefix_caching and request.params.prompt_logprobs is None:
            trunk.hash_blocks(self.allocator.block_size)
            hashes = trunk.block_hashes
            pause = next_fork(group, trunk)
            if pause is not None:  # a hit must not skip the fork
                hashes = hashes[: pause // self.allocator.block_size]
        forks = [(b.fork_at, len(b.token_ids)) for b in group.branches[1:]]
        tokens = len(trunk.token_ids)
        return Demand(tokens, hashes, forks, headroom, group.width, request.longest)

    def _count_prefix(self, demand: Demand, fit: Fit) -> None:
        if self.enable_prefix_caching:
            self.stats.prefix_queries += demand.num_tokens
            self.stats.prefix_hits += fit.cached
            self.stats.prefix_evicted += fit.evicted
            full = len(demand.block_hashes) * self.allocator.block_size
            self.stats.prefix_tails += max(0, demand.num_tokens - 1 - full)

    def _refuse_impossible(self, request: Request) -> None:
        width, prompt, longest = (
            request.params.width, len(request.prompt_token_ids), request.longest
        )  # fmt: skip
        if width > self.max_num_seqs:
            raise RequestError(
                f"n, best_of and beam_width must be at most max_num_seqs, {self.max_num_seqs}; "
                f"got {width}",
                "n",
            )
        if request.params.use_beam_search and width > self.max_num_batched_tokens:
            raise RequestError(
                "beams advance together: beam_width must be at most max_num_batched_tokens, "
                f"{self.max_num_batched_tokens}; got {width}",
                "beam_width",
            )
        if request.priority and self.policy is not SchedulingPolicy.PRIORITY:
            raise RequestError('priority needs scheduling_policy "priority"', "priority")
        if self._live.get(request.request_id) is not None:
            raise RequestError(f"request {request.request_id} is already running", "request_id")
        forks = [(prompt, longest)] * (width - 1)
        for field, what, demand in (
            ("prompt", f"a prompt of {prompt} tokens", Demand(prompt, longest=prompt)),
            ("max_tokens", f"{longest} tokens", Demand(longest, longest=longest)),
            ("n", f"{width} branches", Demand(longest, (), forks, 0, width, longest)),
        ):
            fit = self.allocator.fit(demand)
            if fit.when is When.NEVER:
                raise RequestError(
                    f"{what} can never fit: {fit.needed} KV blocks of "
                    f"{self.allocator.block_size} tokens needed, the pool has {fit.capacity}",
                    field,
                )

    def _leave(self, group: SequenceGroup) -> None:
        for line in (self.running, self.waiting):
            if group in line:
                line.remove(group)


def _place(group: SequenceGroup) -> tuple[float, int]:
    return group.rank
