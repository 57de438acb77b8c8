"""Iteration-level scheduling over paged memory (Orca, OSDI 2022; PagedAttention, section 4.5).

There is no prefill phase and no decode phase: every sequence has tokens to catch up on, and each
step hands out a budget of tokens, first come first served. Time is an argument.
"""

from __future__ import annotations

from collections import deque
from itertools import count

from quire.errors import RequestError
from quire.memory import Demand, KVAllocator, When
from quire.scheduling.beam_search import BeamSearch, Choice
from quire.scheduling.branching import grant, next_fork, plan_regrowth
from quire.scheduling.request import FinishReason, Request
from quire.scheduling.sequence import Sequence, SequenceGroup
from quire.scheduling.step import Chunk, Decision, Progress, Sample, Step, StepResult, Verdict


class Scheduler:
    """Decides what each step computes, and who waits, runs or gives way.

    Groups are served in order of arrival. When the running ones cannot all grow, the latest
    arrival is preempted: its blocks are freed, and it recomputes later. The oldest group is
    therefore never held back by a younger one, and since a request that could not finish alone
    in the pool is refused by ``add``, every request ends.
    """

    def __init__(
        self,
        allocator: KVAllocator,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        enable_prefix_caching: bool = True,
    ) -> None:
        self.allocator = allocator
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.enable_prefix_caching = enable_prefix_caching
        self.waiting: deque[SequenceGroup] = deque()
        self.running: list[SequenceGroup] = []  # both in order of arrival, waiting ones later
        self.num_preemptions = 0
        self.prefix_queries = 0  # tokens looked up in the prefix cache
        self.prefix_hits = 0  # tokens found
        self._groups: dict[str, SequenceGroup] = {}
        self._branches: dict[int, tuple[SequenceGroup, Sequence]] = {}
        self._seq_ids = count()
        self._charged_until = 0.0

    # -- requests ------------------------------------------------------------------------------

    def add(self, request: Request) -> SequenceGroup:
        """Queue a request, or refuse it (RequestError) if it could never run to its end."""
        self._refuse_impossible(request)
        trunk = Sequence(next(self._seq_ids), 0, request.prompt_token_ids)
        beams = BeamSearch(request) if request.params.use_beam_search else None
        group = SequenceGroup(request, trunk, beams)
        self._groups[request.request_id] = group
        self._branches[trunk.seq_id] = (group, trunk)
        self.waiting.append(group)
        return group

    def abort(self, request_id: str) -> bool:
        """End a request and free its blocks; False if there is none of that id."""
        group = self._groups.get(request_id)
        if group is None:
            return False
        for branch in list(group.branches):
            self._end(group, branch)
        return True

    def finish(self, seq_id: int) -> None:
        """End one branch: its text is complete (a stop string, which only the text shows)."""
        self._end(*self._branches[seq_id])

    def group(self, request_id: str) -> SequenceGroup | None:
        return self._groups.get(request_id)

    @property
    def has_work(self) -> bool:
        return bool(self._groups)

    @property
    def num_running_seqs(self) -> int:
        return sum(group.width for group in self.running)

    # -- one iteration -------------------------------------------------------------------------

    def schedule(self, now: float) -> Step:
        """The next step. Empty only if there is nothing to do."""
        self._charge(now)
        step = Step([], [], [])
        budget = self._grow_running(step)
        if not any(decision.what is Verdict.PREEMPT for decision in step.decisions):
            self._admit_waiting(step, budget)
        return step

    def update(self, step: Step, result: StepResult, now: float) -> list[Progress]:
        """Take in what a step gave. Chunks of sequences that have ended since are skipped."""
        self._charge(now)
        progress: list[Progress] = []
        searching: dict[str, dict[int, list[tuple[int, float]]]] = {}
        for chunk in step.chunks:
            known = self._branches.get(chunk.seq_id)
            if known is None:
                continue
            group, branch = known
            self._computed(branch, len(chunk.token_ids))
            if group.expanded and branch.num_pending:
                self._wake_forks(group, branch)
            if chunk.num_samples:
                self._choose(group, branch, result.samples[chunk.seq_id], progress)
            elif chunk.num_candidates:
                found = searching.setdefault(chunk.request.request_id, {})
                found[chunk.seq_id] = result.candidates[chunk.seq_id]
        for request_id, candidates in searching.items():
            self._search(self._groups[request_id], candidates, progress)
        return progress

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
                self._preempt(self.running.pop(), group, wants, step)
                continue  # with this group again, unless it was the last and had to go itself
            step.moves.extend(moves)
            budget -= self._add_chunks(group, wants, step)
            position += 1
        return budget

    def _add_chunks(self, group: SequenceGroup, wants: dict[int, int], step: Step) -> int:
        request, allocator = group.request, self.allocator
        needs_history = request.params.needs_history
        for seq_id, tokens in wants.items():
            branch = self._branches[seq_id][1]
            start = branch.num_computed
            end = start + tokens
            samples = candidates = 0
            if end == len(branch.token_ids):
                if group.beams is not None:
                    candidates = group.beams.num_candidates
                else:
                    samples = 1 if group.expanded else request.params.width
            history = branch.token_ids[branch.num_prompt_tokens :] if needs_history else ()
            step.chunks.append(
                Chunk(
                    seq_id,
                    request,
                    branch.index,
                    branch.token_ids[start:end],
                    start,
                    allocator.table(seq_id),
                    samples,
                    tuple(history),
                    candidates,
                )
            )
        group.memory.hold(allocator.blocks_held(group.tables()))
        return sum(wants.values())

    def _preempt(
        self, victim: SequenceGroup, grower: SequenceGroup, wants: dict[int, int], step: Step
    ) -> None:
        why = f"latest arrival while {grower.request.request_id} could not grow"
        needed, free = self.allocator.blocks_to_append(wants), self.allocator.num_free_blocks
        step.decisions.append(
            Decision(Verdict.PREEMPT, victim.request.request_id, why, needed, free)
        )
        for seq_id in victim.tables():
            self.allocator.free(seq_id)
        victim.running = False
        plan_regrowth(victim)
        victim.memory.hold(0)
        victim.memory.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(victim)

    # -- admission -----------------------------------------------------------------------------

    def _admit_waiting(self, step: Step, budget: int) -> None:
        running = self.num_running_seqs
        while self.waiting and budget:
            group = self.waiting[0]
            spare = self.max_num_seqs - running
            if group.width > spare:
                why = "max_num_seqs sequences are running"
                step.decisions.append(
                    Decision(Verdict.WAIT, group.request.request_id, why, group.width, spare)
                )
                return
            if not self._admit(group, running, step):
                return
            running += group.width
            wants = grant(group, budget)
            moves = self.allocator.append(wants)
            assert moves is not None, "admission reserved these tokens"
            step.moves.extend(moves)
            budget -= self._add_chunks(group, wants, step)

    def _admit(self, group: SequenceGroup, running: int, step: Step) -> bool:
        trunk, request_id = group.branches[0], group.request.request_id
        # Every running sequence may take one more block before any gives one back.
        demand = self._demand(group, headroom=running)
        fit = self.allocator.fit(demand)
        cached = self.allocator.admit(trunk.seq_id, demand)
        if cached is None:
            why = "not enough free blocks"
            step.decisions.append(Decision(Verdict.WAIT, request_id, why, fit.needed, fit.free))
            return False
        why = f"{cached} of {demand.num_tokens} tokens cached"
        step.decisions.append(Decision(Verdict.ADMIT, request_id, why, fit.needed, fit.free))
        trunk.num_computed = cached
        self._wake_forks(group, trunk)  # the cached tokens may end where a branch forks off
        if not group.ever_admitted:
            group.ever_admitted = True
            group.memory.cached_tokens = cached
            if demand.block_hashes:
                self.prefix_queries += demand.num_tokens
                self.prefix_hits += cached
        group.running = True
        self.running.append(self.waiting.popleft())
        return True

    def _demand(self, group: SequenceGroup, headroom: int) -> Demand:
        trunk = group.branches[0]
        hashes: list[bytes] = []
        if self.enable_prefix_caching and group.request.params.prompt_logprobs is None:
            trunk.hash_blocks(self.allocator.block_size)
            hashes = trunk.block_hashes
            pause = next_fork(group, trunk)
            if pause is not None:  # a hit must not skip the fork
                hashes = hashes[: pause // self.allocator.block_size]
        forks = [(b.fork_at, len(b.token_ids)) for b in group.branches[1:]]
        longest = group.request.longest
        return Demand(len(trunk.token_ids), hashes, forks, headroom, group.width, longest)

    def _refuse_impossible(self, request: Request) -> None:
        width, prompt = request.params.width, len(request.prompt_token_ids)
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
        if request.request_id in self._groups:
            raise RequestError(f"request {request.request_id} is already running", "request_id")
        longest = request.longest
        forks = [(prompt, longest)] * (width - 1)
        stages = [
            ("prompt", f"a prompt of {prompt} tokens", Demand(prompt, longest=prompt)),
            ("max_tokens", f"{longest} tokens", Demand(longest, longest=longest)),
            ("n", f"{width} branches", Demand(longest, (), forks, 0, width, longest)),
        ]
        for field, what, demand in stages:
            fit = self.allocator.fit(demand)
            if fit.when is When.NEVER:
                raise RequestError(
                    f"{what} can never fit: {fit.needed} KV blocks of "
                    f"{self.allocator.block_size} tokens needed, the pool has {fit.capacity}",
                    field,
                )

    # -- taking results in ---------------------------------------------------------------------

    def _computed(self, branch: Sequence, tokens: int) -> None:
        size = self.allocator.block_size
        full = (branch.num_computed + tokens) // size
        if self.enable_prefix_caching and full > branch.num_computed // size:
            branch.hash_blocks(size)
            self.allocator.commit(branch.seq_id, branch.block_hashes[:full])
        branch.num_computed += tokens

    def _wake_forks(self, group: SequenceGroup, parent: Sequence) -> None:
        for branch in group.branches:
            if branch.fork_from is parent and branch.fork_at == parent.num_computed:
                self.allocator.fork(parent.seq_id, branch.seq_id)
                branch.num_computed = parent.num_computed
                branch.fork_from = None

    def _choose(
        self,
        group: SequenceGroup,
        branch: Sequence,
        samples: list[Sample],
        progress: list[Progress],
    ) -> None:
        """Extend the branch by its sample; a trunk forks into one branch for each sample."""
        grown = [branch]
        for index in range(1, len(samples)):  # all forks before the first end
            grown.append(self._fork(group, branch, index))
        group.branches += grown[1:]
        group.expanded = True
        for grown_branch, sample in zip(grown, samples, strict=True):
            grown_branch.token_ids.append(sample.token_id)
            reason = _finish_reason(group.request, grown_branch)
            progress.append(
                Progress(group.request, grown_branch.seq_id, grown_branch.index, sample, reason)
            )
            if reason is not None:
                self._end(group, grown_branch)

    def _search(
        self,
        group: SequenceGroup,
        candidates: dict[int, list[tuple[int, float]]],
        progress: list[Progress],
    ) -> None:
        """Let the beams of a group split, die or end, now that all have their candidates."""
        beams, parents = group.beams, group.branches
        assert beams is not None
        length = parents[0].num_output_tokens + 1
        prompt = parents[0].num_prompt_tokens
        choices = beams.advance(
            length,
            [candidates[parent.seq_id] for parent in parents],
            lambda place: parents[place].token_ids[prompt:],
        )
        if choices:
            self._split(group, choices)
            return
        for index, hypothesis in enumerate(beams.finished[: group.request.params.num_outputs]):
            reason, last = beams.finish_reason(hypothesis), len(hypothesis.token_ids) - 1
            for i, token_id in enumerate(hypothesis.token_ids):
                ended = (reason, hypothesis.cumulative_logprob) if i == last else (None, None)
                progress.append(
                    Progress(group.request, parents[0].seq_id, index, Sample(token_id), *ended)
                )
        self.abort(group.request.request_id)

    def _split(self, group: SequenceGroup, choices: list[Choice]) -> None:
        """The beams that go on: a parent's first child takes its place, the others fork off it."""
        parents = group.branches
        live: list[Sequence] = []
        chosen: set[int] = set()
        for choice in choices:  # all forks before any token is added, and before any end
            parent = parents[choice.beam]
            live.append(self._fork(group, parent, 0) if choice.beam in chosen else parent)
            chosen.add(choice.beam)
        group.branches = parents + [branch for branch in live if branch not in parents]
        group.expanded = True
        for place, parent in enumerate(list(parents)):
            if place not in chosen:
                self._end(group, parent)
        group.branches = live
        for branch, choice in zip(live, choices, strict=True):
            branch.token_ids.append(choice.token_id)

    def _fork(self, group: SequenceGroup, parent: Sequence, index: int) -> Sequence:
        child = parent.child(next(self._seq_ids), index)
        self.allocator.fork(parent.seq_id, child.seq_id)
        self._branches[child.seq_id] = (group, child)
        return child

    def _end(self, group: SequenceGroup, branch: Sequence) -> None:
        if branch.seq_id in group.tables():
            self.allocator.free(branch.seq_id)
        del self._branches[branch.seq_id]
        group.branches.remove(branch)
        group.memory.hold(self.allocator.blocks_held(group.tables()))
        if not group.branches:
            del self._groups[group.request.request_id]
            (self.running if group.running else self.waiting).remove(group)

    # -- bookkeeping ---------------------------------------------------------------------------

    def _charge(self, now: float) -> None:
        """Charge the time since the last call to the requests that held blocks through it."""
        elapsed = now - self._charged_until
        self._charged_until = now
        for group in self.running:
            group.memory.block_seconds += group.memory.blocks * elapsed


def _finish_reason(request: Request, branch: Sequence) -> FinishReason | None:
    params, token = request.params, branch.token_ids[-1]
    produced = branch.num_output_tokens
    if produced >= params.min_tokens:
        if token in request.eos_token_ids and not params.ignore_eos:
            return FinishReason.STOP
        if token in params.stop_token_ids:
            return FinishReason.STOP
    return FinishReason.LENGTH if produced >= request.max_tokens else None
