"""Iteration-level scheduling over paged memory (Orca, OSDI 2022; PagedAttention, section 4.5).

There is no prefill phase and no decode phase: every sequence has tokens to catch up on, and each
step hands out a budget of tokens, first come first served. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from collections.abc import Sequence as Seq

from quire.core.errors import RequestError
from quire.core.memory import KVAllocator, MoveKind
from quire.core.protocol import Decision, Request, Step, StepResult, Verdict
from quire.core.scheduling.adapters import AdapterSlots, SlotsOfAStep
from quire.core.scheduling.admission import (
    Admission,
    BatchLimits,
    SchedulerStats,
    fitted,
    too_many,
)
from quire.core.scheduling.chunking import Chunker, tokens_to_compute
from quire.core.scheduling.decoding import Candidates, LiveGroups, OnToken
from quire.core.scheduling.invalidation import PhysicalBlock, lost_blocks, target_of, written
from quire.core.scheduling.lookahead import Lookahead
from quire.core.scheduling.preemption import Preemption, Recovery
from quire.core.scheduling.prefix_cache import Caching, PrefixCache
from quire.core.scheduling.request_queue import Queueing, RequestQueue
from quire.core.scheduling.scores import ScoredBlocks
from quire.core.scheduling.sequence import Search, SequenceGroup, Status
from quire.core.scheduling.session import Session, refuse_as_turn
from quire.core.scheduling.sessions import Sessions
from quire.core.scheduling.sharing import BesideShare, DecodeShare


class Scheduler:
    """Decides what each step computes, and who waits, runs or gives way.

    Groups are in one queue: by arrival, by priority and arrival, or so that clients share. When
    the running ones cannot all grow, sessions that are idle give way first, the longest idle one
    before the others; then the last in the queue is preempted, by swap or by recompute, and comes
    back before any group behind it is admitted. The first is never held back by the others, and
    since a request that could not finish alone in the pool is refused by ``add``, every request
    ends.

    caching: None: nothing that has been computed is found again.
    begin_search: for requests of beams; None: there are none.
    """

    begin_search: Callable[[Request], Search] | None = None

    def __init__(
        self,
        allocator: KVAllocator,
        batch: BatchLimits,
        queueing: Queueing = Queueing(),  # noqa: B008  # frozen, as all of these
        recovery: Recovery = Recovery(),  # noqa: B008
        caching: Caching | None = Caching(),  # noqa: B008
    ) -> None:
        self.allocator = allocator
        self.batch, self.recovery = batch, recovery
        self.max_queue_time = queueing.max_queue_time
        self.queue = queue = RequestQueue(queueing)
        self.adapters = AdapterSlots(batch.max_adapters)
        contents = allocator.contents
        self.prefix_cache: PrefixCache | None = None
        if caching is not None and contents is not None:
            self.prefix_cache = PrefixCache(allocator, contents, caching, recovery.costs)
        live = self._live = LiveGroups(allocator, self.adapters)
        self.sessions = Sessions(allocator, live)
        scored = self._scored = ScoredBlocks(allocator.block_size)
        self._preemption = Preemption(allocator, queue, self.sessions, recovery)
        self.admission = Admission(allocator, live, scored, self.prefix_cache)
        self._chunker = Chunker(allocator, live, scored, self.prefix_cache)
        self._lookahead = Lookahead(allocator, self._chunker)
        self._share, self._beside = DecodeShare(), BesideShare()
        self._drafts: dict[int, Seq[int]] = {}  # by sequence, for the next step
        self._news: list[Decision] = []  # for the next step to tell

    @property
    def stats(self) -> SchedulerStats:
        return self.admission.stats

    # -- requests ------------------------------------------------------------------------------

    def add(self, request: Request, session: Session | None = None) -> SequenceGroup:
        """Queue a request, or refuse it (RequestError) if it could never run to its end.

        session: whose history it goes on from, as its next turn.
        """
        try:
            rank = self.queue.rank(request)
            if session is None:
                request = self._fitted(request, len(request.prompt_token_ids))
            else:
                refuse_as_turn(request, session)
                request = self._fitted(request, len(session.history))
        except RequestError:
            self.stats.decisions[Verdict.REFUSE.value] += 1
            raise
        if session is None:
            return self.queue.enqueue(self._live.add(request, rank, self._search_for(request)))
        return self.queue.enqueue(self.sessions.begin(session, request, rank))

    def _search_for(self, request: Request) -> Search | None:
        if not request.params.use_beam_search:
            return None
        assert self.begin_search is not None, "whoever lets requests ask for beams has set it"
        return self.begin_search(request)

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
            self._news.append(decision)

    def sit_out(self, request_ids: Iterable[str]) -> None:
        """Of those whose outcome was late, these are not let in again until the next call."""
        self.queue.sitting = frozenset(request_ids)

    def request_of(self, seq_id: int) -> Request | None:
        """Whose sequence it is; None if it has ended."""
        known = self._live.branch(seq_id)
        return None if known is None else known[0].request

    def group(self, request_id: str) -> SequenceGroup | None:
        return self._live.get(request_id)

    @property
    def has_work(self) -> bool:
        if len(self._live) > 0:
            return True
        return self.prefix_cache is not None and self.prefix_cache.has_work

    @property
    def running(self) -> Seq[SequenceGroup]:
        """In order of rank."""
        return self.queue.running

    @property
    def waiting(self) -> Seq[SequenceGroup]:
        """In order of rank."""
        return self.queue.waiting

    @property
    def num_running_seqs(self) -> int:
        return self.queue.num_running_seqs

    # -- one iteration -------------------------------------------------------------------------

    def schedule(self, now: float, lead: Callable[[Step], tuple[int, int]] | None = None) -> Step:
        """The next step. Empty only if there is nothing to do.

        lead: grows the first of the running groups, which the step leaves out then: how many they
            are, and their tokens.
        """
        self.allocator.advance(now)
        cache, live = self.prefix_cache, self._live
        moves = [] if cache is None or cache.settled else cache.store()
        if live.fork_moves:
            moves += live.take_fork_moves()
        step, self._news = Step(moves, decisions=self._news), []
        if self.max_queue_time is not None:
            self._expire(now, self.max_queue_time, step)
        budget = self._grow_running(step, lead)
        if not (step.decisions and any(decision.what.preempts for decision in step.decisions)):
            if self.queue.num_waiting:
                budget = self._admit_waiting(step, budget)
            if self._drafts:
                self._chunker.add_drafts(step, self._drafts, budget)
        self._drafts.clear()
        return self._complete(step, now)

    def schedule_ahead(self, under_way: Step, now: float) -> Step | None:
        """The step after ``under_way``, whose result is still to come, and nothing else is.

        None: it depends on that result. ``update`` must be given ``under_way`` next, then this.
        Tokens are what ``schedule`` would lead to; a group that waits for what a sequence holds
        that ``under_way`` ends is let in one step later.
        """
        self._drafts.clear()
        if self._live.fork_moves or self._live.has_turns:
            return None
        self.allocator.advance(now)
        if self.prefix_cache is not None and not self.prefix_cache.settled:
            self.prefix_cache.settle()
        if self._beside.in_use and not self._beside.has_room(self.running):
            return None
        tokens = self.batch.max_num_batched_tokens
        grown = self._lookahead.grow(self.running, under_way, tokens)
        if grown is None:
            return None
        step, budget = grown
        if self.max_queue_time is not None and step.chunks:  # else perhaps no step says so
            self._expire(now, self.max_queue_time, step)
        if self.queue.num_waiting:
            self._admit_waiting(step, budget)
        if not step.chunks and all(decision.what is Verdict.WAIT for decision in step.decisions):
            return None
        return self._complete(step, now)

    def _complete(self, step: Step, now: float) -> Step:
        if self.prefix_cache is not None and self.prefix_cache.places is not None:
            self._chunker.leave_states(step, self.prefix_cache)
        for decision in step.decisions:
            self.stats.decisions[decision.what.value] += 1
        news, usage = self._live.take_news(), self.allocator.usage()
        return Step(step.moves, step.chunks, step.decisions, *news, step.ahead, now, usage)

    def update(self, step: Step, result: StepResult, now: float, on_token: OnToken) -> None:
        """Take in what a step gave. Chunks of sequences that have ended since are skipped.

        on_token: given each new token; true where the text ends with it for a reason that only the
            text shows, a stop string. What has been confirmed after that counts for nothing.
        """
        self.allocator.advance(now)
        if result.failed_moves:
            self._invalidate(lost_blocks(step, result.failed_moves, self.allocator.block_size))
        outcomes, live, running = result.outcomes, self._live, Status.RUNNING
        if result.delays or self._beside.in_use:
            self._beside.observe(step, result.delays, now - step.now, live.branch)
        if self.queue.accounts is not None:
            self.queue.accounts.serve(live.served(step, result, now - step.now))
        searching: dict[str, Candidates] = {}
        late: dict[SequenceGroup, None] = {}
        find, extend, ended = live.branch, live.extend, live.num_ended
        for chunk in step.chunks:
            seq_id, readout = chunk.seq_id, chunk.readout
            known = find(seq_id)
            if self._scored.awaited:
                sound = known[0].status is running if known else not result.failed_moves
                self._scored.take(chunk, outcomes.get(seq_id), sound=sound)
            if known is None or known[0].status is not running:
                continue
            group, branch = known
            if chunk.start != branch.num_computed:
                continue  # planned before it was known that the sequence has to wait
            branch.num_computed += len(chunk.token_ids)
            if readout is None:
                if group.expanded:
                    live.wake_forks(group, branch)
            elif not readout.rows:
                live.conclude(group, branch, on_token)
            elif outcomes[seq_id].late:
                late[group] = None
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
        for group in late:
            self._take_back(group)
        if self._chunker.unpublished:
            self._chunker.publish_known()

    def _take_back(self, group: SequenceGroup) -> None:
        """A sequence of the group was given no token: all of it waits, and is computed again."""
        self._preemption.forget(group)
        group.memory.hold(0, 0)
        self.queue.suspend(group)
        self.sit_out([*self.queue.sitting, group.request.request_id])
        why = "what may come next was not known in time"
        self._news.append(Decision(Verdict.SIT_OUT, group.request.request_id, why))

    def audit(self) -> list[str]:
        """See ``KVAllocator.audit``."""
        return self.allocator.audit({i for group in self._everyone() for i in group.tables()})

    def clear_contents(self) -> None:
        """Let nobody find what has been computed until now, but on a disk. What runs goes on."""
        self._scored.clear()
        if self.prefix_cache is not None:
            self.prefix_cache.clear()
        if self.admission.watcher is not None:
            self.admission.watcher.cleared()

    def invalidate(self, step: Step) -> None:
        """A step failed: groups that relied on its moves compute their tokens again.

        Nobody finds what its chunks were to compute. That is more than their sequences hold: under
        a window, a step that was planned after this one may have given some of it back.
        """
        lost = {target_of(move) for move in step.moves if move.kind is not MoveKind.STORE}
        if lost:
            self._invalidate(lost)
        for chunk in step.chunks:
            self._scored.forget(chunk.seq_id)  # of who has left meanwhile, too
            self._forget_contents(written(chunk, self.allocator.block_size))

    def _invalidate(self, lost: Set[PhysicalBlock]) -> None:
        for group in self._preemption.forget_invalid(self._everyone(), lost):
            self.queue.suspend(group)
        self._forget_contents(lost)  # of who has left meanwhile, too

    def _forget_contents(self, lost: Iterable[PhysicalBlock]) -> None:
        if self.prefix_cache is not None:
            on_device = ((one.kv_group, one.block) for one in lost if not one.on_host)
            self.prefix_cache.invalidate(on_device)

    def _everyone(self) -> list[SequenceGroup]:
        """Who may hold blocks."""
        return [*self.running, *self.waiting, *self.sessions.resting()]

    # -- growing -------------------------------------------------------------------------------

    def _grow_running(self, step: Step, lead: Callable[[Step], tuple[int, int]] | None) -> int:
        """Chunks for the running groups, preempting from the back; the budget left over."""
        position, grown = (0, 0) if lead is None else lead(step)
        running, budget = self.queue.running, self.batch.max_num_batched_tokens - grown
        share, beside = self._share, self._beside
        sitting = beside.begin(running, step) if beside.in_use else ()
        shares = len(running) > 1  # else there is nobody to share a step with
        if shares:
            share.begin()
        while position < len(running) and budget:
            group = running[position]
            own = share.budget(running, position, budget) if shares else budget
            if sitting and group.request.request_id in sitting:
                own = 0
            elif beside.in_use:
                own = beside.tokens(group, own)
            if not own:
                position += 1
                continue
            new_tokens = tokens_to_compute(group, own)
            together = group.tables() if len(group.branches) > 1 else ()
            moves = self.allocator.append(new_tokens, together)
            if moves is None:
                preemption = self._preemption
                idle = preemption.idle(group)
                victim = idle[0] if idle else self.queue.send_back()
                preemption.preempt(victim, group, preemption.shortage(new_tokens), step)
                continue  # with this group again, unless it was the last and had to go itself
            budget -= self._chunker.add(group, new_tokens, moves, step)
            position += 1
        return budget

    def _expire(self, now: float, longest: float, step: Step) -> None:
        """End those that have waited for too long without ever having been let in."""
        for group in self.queue.overdue(now - longest):
            name, waited = group.request.request_id, now - group.request.arrival
            why = f"waited {waited:.3g} s to be let in; max_queue_time is {longest:g} s"
            self._end(group)
            step.decisions.append(Decision(Verdict.EXPIRE, name, why))

    # -- admission -----------------------------------------------------------------------------

    def _admit_waiting(self, step: Step, budget: int) -> int:
        """Let in those that wait, in the queue's order; the budget left over."""
        queue, preemption, adapters = self.queue, self._preemption, self.adapters
        running, slots, adapters.wanted = queue.num_running_seqs, None, []
        while budget and (group := queue.first(slots.closed if slots else ())) is not None:
            adapter = None if group.begun else group.request.adapter
            if adapter is not None:
                slots = slots or SlotsOfAStep(adapters)
                if slots.passes(group.request.request_id, adapter, step.decisions):
                    continue
            # Three ways out: too many sequences, too few blocks to come in, or (further down) its
            # own blocks but none for the next token. Those behind wait in all of them: to let a
            # smaller one pass would let such pass for ever.
            spare = self.batch.max_num_seqs - running
            if group.width > spare:
                step.decisions.append(too_many(group.width, spare).decision(group))
                break
            if self.batch.whole_prompts and len(group.request.prompt_token_ids) > budget:
                break
            beside = self._beside
            if beside.in_use and group.request.params.asks_beside and not beside.invites(group):
                break
            had_blocks = group.status is not Status.WAITING
            if not self._let_in(group, running, step):
                break
            if not group.begun:
                self._live.open(group)
            queue.let_in(group)
            running += group.width
            new_tokens = tokens_to_compute(group, budget)
            together = group.tables() if len(group.branches) > 1 else ()
            moves = self.allocator.append(new_tokens, together)
            while moves is None and (idle := preemption.idle(group)):
                preemption.preempt(idle[0], group, preemption.shortage(new_tokens), step)
                moves = self.allocator.append(new_tokens, together)
            if moves is None:
                # It is one of the running now, and must find room to grow: in the next step, by
                # preempting others if it comes before them.
                assert had_blocks, "admission left room for these tokens"
                break
            budget -= self._chunker.add(group, new_tokens, moves, step)
        return budget

    def _let_in(self, group: SequenceGroup, running: int, step: Step) -> bool:
        """Give the first that waits its blocks, idle ones if those will do; False: it must wait."""
        while (shortage := self.admission.let_in(group, running, step)) is not None:
            idle = self._preemption.idle(group)
            held = sum(self.allocator.blocks_held(one.tables())[0] for one in idle)
            # While others run, what idle ones hold is not taken unless it will do.
            if not idle or (self.running and shortage.needed - shortage.free > held):
                step.decisions.append(shortage.decision(group))
                return False
            shortage = shortage._replace(why="could not be let in")
            self._preemption.preempt(idle[0], group, shortage, step)
        return True

    def _fitted(self, request: Request, known: int) -> Request:
        """``known``: tokens before its output, in the history of a session or in its prompt."""
        self.batch.refuse_too_wide(request)
        if self._live.get(request.request_id) is not None:
            raise RequestError(f"request {request.request_id} is already running", "request_id")
        return fitted(request, known, self.allocator)
