"""Iteration-level scheduling over paged memory (Orca, OSDI 2022; PagedAttention, section 4.5).

There is no prefill phase and no decode phase: every sequence has tokens to catch up on, and each
step hands out a budget of tokens, first come first served. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from collections.abc import Sequence as Seq

from quire.core.errors import RequestError
from quire.core.memory import BlockMove, KVAllocator, MoveKind, audit
from quire.core.protocol import Decision, Request, SchedulingPolicy, Step, StepResult, Verdict
from quire.core.scheduling.adapters import AdapterSlots
from quire.core.scheduling.admission import Admission, too_many
from quire.core.scheduling.beyond import Beyond
from quire.core.scheduling.block_events import BlockEvents
from quire.core.scheduling.branching import tokens_to_compute
from quire.core.scheduling.chunking import Chunker
from quire.core.scheduling.decoding import Candidates, LiveGroups, OnToken
from quire.core.scheduling.giving_way import GivingWay
from quire.core.scheduling.invalidation import Place, lost_places, target_of
from quire.core.scheduling.limits import fitted, refuse_as_turn, refuse_too_wide
from quire.core.scheduling.lookahead import Lookahead
from quire.core.scheduling.preemption import Preemption
from quire.core.scheduling.request_queue import RequestQueue
from quire.core.scheduling.scores import ScoredBlocks
from quire.core.scheduling.sequence import SequenceGroup, Status
from quire.core.scheduling.sessions.session import Ring
from quire.core.scheduling.sessions.sessions import Sessions
from quire.core.scheduling.sharing import DecodeShare
from quire.core.scheduling.stats import SchedulerStats


class Scheduler:
    """Decides what each step computes, and who waits, runs or gives way.

    Groups stand in one line: by arrival, by priority and arrival, or so that clients share. When
    the running ones cannot all grow, sessions that are idle give way first, the longest idle one
    before the others; then the last in line is preempted, by swap or by recompute, and comes back
    before anyone behind it is admitted. The first in line is never held back by the others, and
    since a request that could not finish alone in the pool is refused by ``add``, every request
    ends.

    max_queue_time: seconds after which a request that has never been let in ends by itself; its
        Decision tells. None: never.
    max_adapters: most different ones that run at once (see ``AdapterSlots``). None: any number.
    block_events: of the allocator, if somebody wants to know what can be found.
    whole_prompts: each is computed in one step, which must have room for the longest.
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
        beyond: Beyond | None = None,
        max_num_sessions: int = 128,
        max_sessions_per_client: int | None = None,
        ring: Ring = Ring(),  # noqa: B008  # frozen
        max_queue_time: float | None = None,
        max_adapters: int | None = None,
        block_events: BlockEvents | None = None,
        whole_prompts: bool = False,
    ) -> None:
        self.allocator = allocator
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.enable_prefix_caching = caching = enable_prefix_caching
        self.max_queue_time, self._whole_prompts = max_queue_time, whole_prompts
        self.stats = SchedulerStats()
        self.block_events = events = block_events
        self.queue = RequestQueue(policy)
        self._preemption = preemption = preemption or Preemption(allocator)
        self.adapters = AdapterSlots(max_adapters)
        live = self._live = LiveGroups(allocator, self.adapters)
        self.sessions = Sessions(allocator, live, max_num_sessions, max_sessions_per_client, ring)
        scored = self._scored = ScoredBlocks(allocator.block_size)
        self.beyond = beyond = beyond or Beyond(allocator)
        self._admission = Admission(
            allocator, live, preemption, self.stats, scored, beyond, caching, events
        )
        self._chunker = Chunker(allocator, live, scored, beyond, caching, events)
        self._lookahead, self._share = Lookahead(allocator, self._chunker), DecodeShare()
        self._giving_way = GivingWay(allocator, self.queue, self.sessions, preemption)
        self._drafts: dict[int, Seq[int]] = {}  # by sequence, for the next step
        self._drafting: list[Decision] = []  # about them

    # -- requests ------------------------------------------------------------------------------

    def add(self, request: Request) -> SequenceGroup:
        """Queue a request, or refuse it (RequestError) if it could never run to its end."""
        try:
            rank = self.queue.rank(request)
            request = self._fitted(request, len(request.prompt_token_ids))
        except RequestError:
            self.stats.decisions[Verdict.REFUSE.value] += 1
            raise
        return self.queue.enqueue(self._live.add(request, rank))

    def abort(self, request_id: str, *, invalid: bool = False) -> bool:
        """End a request and free its blocks; False if there is none of that id.

        The turn of a session leaves what it was given and what it has generated to the session.

        ``invalid``: a step failed, so its blocks do not hold what they should.
        """
        group = self._live.get(request_id)
        if group is None:
            return False
        self._end(group, invalid=invalid)
        return True

    def _end(self, group: SequenceGroup, *, invalid: bool = False) -> None:
        self.queue.leave(group)
        for branch in list(group.branches):
            if invalid:
                self._scored.forget(branch.seq_id)
            self._live.end(group, branch, invalid=invalid)

    def propose(self, seq_id: int, drafts: Seq[int], decision: Decision | None = None) -> None:
        """Drafts of the tokens that a sequence may go on with, for the next step to verify.

        TO_DRAFT stands for those that the executor's draft model is to make.

        They are computed along with the sequence's own next token, as far as there is room for them
        in that step and in the pool once everybody has had what is known to be computed. Which
        text comes of it does not depend on them: those that are not what is sampled leave no trace.
        """
        self._drafts[seq_id] = drafts
        if decision is not None:
            self._drafting.append(decision)

    def request_of(self, seq_id: int) -> Request | None:
        """Whose sequence it is; None if it has ended."""
        known = self._live.branch(seq_id)
        return None if known is None else known[0].request

    def group(self, request_id: str) -> SequenceGroup | None:
        return self._live.get(request_id)

    @property
    def has_work(self) -> bool:
        return len(self._live) > 0 or self.beyond.has_work

    @property
    def running(self) -> Seq[SequenceGroup]:
        """In line."""
        return self.queue.running

    @property
    def waiting(self) -> Seq[SequenceGroup]:
        """In line."""
        return self.queue.waiting

    @property
    def num_running_seqs(self) -> int:
        return self.queue.num_running_seqs

    # -- requests of sessions, which are opened, fed, cut and closed by ``sessions`` ------------

    def add_turn(self, session_id: str, request: Request) -> SequenceGroup:
        """Queue a request that goes on from the session's history, or refuse it.

        UnknownSessionError if it is not open, SessionBusyError while it has a turn.
        """
        session = self.sessions.unused(session_id)
        try:
            rank = self.queue.rank(request)
            refuse_as_turn(request, session)
            request = self._fitted(request, len(session.history))
        except RequestError:
            self.stats.decisions[Verdict.REFUSE.value] += 1
            raise
        return self.queue.enqueue(self.sessions.begin(session_id, request, rank))

    # -- one iteration -------------------------------------------------------------------------

    def schedule(self, now: float, lead: Callable[[], tuple[int, int]] | None = None) -> Step:
        """The next step. Empty only if there is nothing to do.

        lead: grows the running groups that stand first in line, whom the step leaves out then: how
            many they are, and their tokens.
        """
        self.allocator.advance(now)
        self.allocator.settle()
        moves = self.beyond.store() + self._live.take_fork_moves()
        step, self._drafting = Step(moves, decisions=self._drafting), []
        self._expire(now, step)
        budget = self._grow_running(step, lead)
        if not any(decision.what.preempts for decision in step.decisions):
            budget = self._admit_waiting(step, budget)
            if self._drafts:
                self._chunker.add_drafts(step, self._drafts, budget)
        self._drafts.clear()
        return self._complete(step, now)

    def schedule_ahead(self, under_way: Step, now: float) -> Step | None:
        """The step after ``under_way``, whose result is still to come, and nothing else is.

        None: it depends on that result. ``update`` must be given ``under_way`` next, then this.
        Tokens are what ``schedule`` would lead to; whoever waits for what a sequence holds that
        ``under_way`` ends is let in one step later.
        """
        self._drafts.clear()
        if self._live.has_fork_moves or self._live.has_turns:
            return None
        self.allocator.advance(now)
        self.allocator.settle()
        grown = self._lookahead.grow(self.running, under_way, self.max_num_batched_tokens)
        if grown is None:
            return None
        step, budget = grown
        if step.chunks:  # else there may be no step to tell of it
            self._expire(now, step)
        self._admit_waiting(step, budget)
        if not step.chunks and all(decision.what is Verdict.WAIT for decision in step.decisions):
            return None
        return self._complete(step, now)

    def _complete(self, step: Step, now: float) -> Step:
        for decision in step.decisions:
            self.stats.decisions[decision.what.value] += 1
        news, usage = self._live.take_news(), self.allocator.usage()
        return Step(step.moves, step.chunks, step.decisions, *news, step.ahead, now, usage)

    def update(self, step: Step, result: StepResult, now: float, on_token: OnToken) -> None:
        """Take in what a step gave. Chunks of sequences that have ended since are skipped.

        on_token: given each new token; true where the text ends with it for a reason that only the
            text shows, a stop string. What has been confirmed beyond that counts for nothing.
        """
        self.allocator.advance(now)
        self._invalidate(lost_places(step, result.failed_moves, self.allocator.block_size))
        outcomes = result.outcomes
        self.queue.newcomers.serve(self._live.served(step, outcomes))
        searching: dict[str, Candidates] = {}
        live, running = self._live, Status.RUNNING
        find, extend, ended = live.branch, live.extend, live.num_ended
        for chunk in step.chunks:
            seq_id, readout = chunk.seq_id, chunk.readout
            known = find(seq_id)
            if self._scored:
                sound = known[0].status is running if known else not result.failed_moves
                self._scored.take(chunk, outcomes.get(seq_id), sound=sound)
            if known is None or known[0].status is not running:
                continue
            group, branch = known
            branch.num_computed += len(chunk.token_ids)
            if readout is None:
                if group.expanded:
                    live.wake_forks(group, branch)
            elif not readout.rows:
                live.conclude(group, branch, on_token)
            elif readout.candidates:
                found = searching.setdefault(group.request.request_id, {})
                found[seq_id] = outcomes[seq_id].candidates
            elif group.expanded:
                extend(group, branch, outcomes[seq_id].tokens, on_token)
            else:
                outcome = outcomes[seq_id]
                live.expand(group, branch, [*outcome.tokens, *outcome.forks], on_token)
        for request_id, candidates in searching.items():
            searched = live.get(request_id)
            if searched is not None:
                live.search(searched, candidates, on_token)
        if live.num_ended > ended:
            self.queue.leave_ended()
        self._chunker.publish_known()

    def audit(self) -> list[str]:
        """What was wrong with the allocator's books, in words; no longer. Between two steps."""
        everyone = [*self.running, *self.waiting, *self.sessions.resting()]
        return audit(self.allocator, {i for group in everyone for i in group.tables()})

    def clear_contents(self) -> None:
        """Let nobody find what has been computed until now, but on a disk. What runs goes on."""
        self.allocator.clear_contents()
        self._scored.clear()
        self.beyond.clear()

    def invalidate(self, moves: Iterable[BlockMove]) -> None:
        """These moves did not take place: whoever relied on them computes its tokens again."""
        self._invalidate({target_of(move) for move in moves if move.kind is not MoveKind.STORE})

    def _invalidate(self, lost: Set[Place]) -> None:
        if not lost:
            return
        everyone = [*self.running, *self.waiting, *self.sessions.resting()]
        for group in self._preemption.forget_invalid(everyone, lost):
            self.queue.suspend(group)
        for on_host, kv_group, block in lost:  # of who has left meanwhile, too
            if not on_host:
                self.allocator.invalidate(block, kv_group)

    # -- growing -------------------------------------------------------------------------------

    def _grow_running(self, step: Step, lead: Callable[[], tuple[int, int]] | None) -> int:
        """Chunks for the running groups, preempting from the back; the budget left over."""
        position, grown = (0, 0) if lead is None else lead()
        running, budget = self.queue.running, self.max_num_batched_tokens - grown
        self._share.begin()
        while position < len(running) and budget:
            group, own = running[position], self._share.budget(running, position, budget)
            if not own:
                position += 1
                continue
            new_tokens = tokens_to_compute(group, own)
            moves = self.allocator.append(new_tokens)
            if moves is None:
                idle = self._giving_way.idle(group)
                victim = idle[0] if idle else self.queue.send_back()
                self._giving_way.preempt(victim, group, self._giving_way.shortage(new_tokens), step)
                continue  # with this group again, unless it was the last and had to go itself
            budget -= self._chunker.add(group, new_tokens, moves, step)
            position += 1
        return budget

    def _expire(self, now: float, step: Step) -> None:
        """End those that have waited for too long without ever having been let in."""
        longest = self.max_queue_time
        if longest is None:
            return
        for group in self.queue.overdue(now - longest):
            name, waited = group.request.request_id, now - group.request.arrival
            why = f"waited {waited:.3g} s to be let in; max_queue_time is {longest:g} s"
            self._end(group)
            step.decisions.append(Decision(Verdict.EXPIRE, name, why))

    # -- admission -----------------------------------------------------------------------------

    def _admit_waiting(self, step: Step, budget: int) -> int:
        """Let in who has waited, first come first served; the budget left over."""
        if not self.queue.num_waiting:
            return budget
        running, slots = self.queue.num_running_seqs, self.adapters.admissions()
        while budget and (group := slots.next_in_line(self.queue, step.decisions)) is not None:
            # Three ways out: too many sequences, too few blocks to come in, or (further down) its
            # own blocks but none for the next token. Whoever is behind waits in all of them: to
            # let a smaller one pass would let such pass for ever.
            spare = self.max_num_seqs - running
            if group.width > spare:
                step.decisions.append(too_many(group.width, spare).decision(group))
                break
            if self._whole_prompts and len(group.request.prompt_token_ids) > budget:
                break
            had_blocks = group.status is not Status.WAITING
            if not self._let_in(group, running, step):
                break
            if not group.begun:
                self._live.open(group)
            self.queue.let_in(group)
            running += group.width
            new_tokens = tokens_to_compute(group, budget)
            moves = self.allocator.append(new_tokens)
            while moves is None and (idle := self._giving_way.idle(group)):
                self._giving_way.preempt(
                    idle[0], group, self._giving_way.shortage(new_tokens), step
                )
                moves = self.allocator.append(new_tokens)
            if moves is None:
                # It is one of the running now, and must find room to grow: in the next step, by
                # preempting others if it comes before them.
                assert had_blocks, "admission left room for these tokens"
                break
            budget -= self._chunker.add(group, new_tokens, moves, step)
        return budget

    def _let_in(self, group: SequenceGroup, running: int, step: Step) -> bool:
        """Give the first in line its blocks, idle ones if those will do; False: it must wait."""
        while (shortage := self._admission.let_in(group, running, step)) is not None:
            idle = self._giving_way.idle(group)
            held = sum(self.allocator.blocks_held(one.tables())[0] for one in idle)
            # While others run, what idle ones hold is not taken unless it will do.
            if not idle or (self.running and shortage.needed - shortage.free > held):
                step.decisions.append(shortage.decision(group))
                return False
            self._giving_way.preempt(
                idle[0], group, shortage._replace(why="could not be let in"), step
            )
        return True

    def _fitted(self, request: Request, known: int) -> Request:
        """``known``: tokens before its output, in the history of a session or in its prompt."""
        refuse_too_wide(request, self.max_num_seqs, self.max_num_batched_tokens)
        if self._live.get(request.request_id) is not None:
            raise RequestError(f"request {request.request_id} is already running", "request_id")
        return fitted(request, known, self.allocator)
