"""An engine on a virtual clock: the real scheduler and allocator, no model.

Orca's iteration-level scheduling makes a step the unit of time: arrivals during a step wait for
its end, as they do in ``Engine.step``. The caller has the clock, for one engine or many.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial

from quire.capabilities.beams import BeamSearch
from quire.capabilities.speculation import Speculation
from quire.core.errors import RequestError
from quire.core.limits import EngineLimits
from quire.core.memory import BlockSource, Usage
from quire.core.protocol import Decision, Outcome, Progress, Step, Verdict
from quire.core.scheduling.admission import SchedulerStats
from quire.engine.scheduling import scheduler_of
from quire.engine.traces.request import TraceRequest
from quire.engine.waiting_room import WaitEstimate
from quire.engine.work import NOBODY, sights_of, work_of
from quire_lab.simulation.acceptance import Profiles
from quire_lab.simulation.cost_model import CostModel
from quire_lab.simulation.draft_model import SimulatedDraftModel
from quire_lab.simulation.fast_forward import FastForward
from quire_lab.simulation.live import LiveRequest, RequestMaker
from quire_lab.simulation.observer import Observer, Visit
from quire_lab.simulation.recorder import SimulationRecorder
from quire_lab.simulation.result import RequestRecord
from quire_lab.simulation.sampling import SimulatedModel
from quire_lab.simulation.steady_decoding import SteadyDecoding
from quire_lab.simulation.steady_run import SteadyRun, UnderWay

ENDS, PLANS = 0, 2
"""What an engine does next when it pauses: its step ends, or it plans the next one. Between the
two, at one time, stands who arrives at that time."""

Pause = tuple[float, int]
"""The time, and ENDS or PLANS."""


class SimulatedEngine:
    """One life of an engine with these limits, from an empty pool on.

    ``steps`` is to be run up to each time at which somebody may come, who is then handed over.

    model: whose seed drafts have too. Where a model drafts for it, ``cost_model`` is
        ``CostsWithDraft``.
    skip_ahead: take steps that only decode together, and look at nobody who does nothing else in
        steps of others. The result is the same to the last bit. Steps that may verify drafts are
        never skipped.
    source: what blocks are fetched from, and stored in.
    on_end: called with every request that has ended or was refused, and the time.
    on_step: called with the time and every step that the scheduler made; steps that were taken
        together are not among them, nor in others who only decodes.
    """

    def __init__(
        self,
        limits: EngineLimits,
        cost_model: CostModel,
        model: SimulatedModel,
        recorder: SimulationRecorder,
        *,
        on_end: Callable[[RequestRecord, float], None],
        skip_ahead: bool = True,
        source: BlockSource | None = None,
        on_step: Callable[[float, Step], None] | None = None,
    ) -> None:
        self.limits = limits
        self.num_tokens = 0  # computed
        self.busy_seconds = 0.0
        self.scheduler = scheduler_of(limits, cost_model.recovery_costs(limits.block_size), source)
        self.scheduler.begin_search = BeamSearch
        self._cost_model = cost_model
        self._recorder = recorder
        self.observer: Observer | None = None  # with one, no steps are taken together
        self._on_end = on_end
        self._skip_ahead = skip_ahead and model.drafting is None
        self._visit: Visit | None = None
        self._on_step = on_step
        self._model = model
        self._maker = RequestMaker(limits)
        self._live: dict[str, LiveRequest] = {}
        self._fast_forward = FastForward(self.scheduler, limits, self._live)
        self._steady: SteadyDecoding | None = None
        self.speculation: Speculation | None = None
        self._draft_model: SimulatedDraftModel | None = None
        self._sights = sights_of(limits.kv_groups)
        if (drafting := model.drafting) is not None:
            profiles, seed = self._profiles_of, model.seed
            self.speculation = drafting.speculation(profiles, seed)
            self._draft_model = drafting.draft_model(limits, cost_model, profiles, seed)
            if self._draft_model is not None:
                self._sights = self._draft_model.target_sights
        self._estimate = WaitEstimate(self.scheduler.queue)
        # Requests that have come, and that the scheduler need not know of yet.
        self._line: deque[tuple[int, TraceRequest, float]] = deque()
        self._line_tokens = 0  # of their prompts
        self._has_news = False  # a request has come since the last step was planned
        self._idle = True  # nothing has run just before
        self._under_way: UnderWay | None = None
        self._run: SteadyRun | None = None

    @property
    def stats(self) -> SchedulerStats:
        return self.scheduler.stats

    def visit(self, at: float, look: Callable[[float], None]) -> None:
        """Have it looked at in the first step that ends after ``at``, once that has its blocks."""
        self._visit = Visit(at, look)

    @property
    def gave_up(self) -> bool:
        """Too many have missed the goals."""
        return self._recorder.gives_up

    # -- what is known of it between two pauses ------------------------------------------------

    @property
    def usage(self) -> Usage:
        """The pool's slots during the step under way, or since the last one."""
        told = self.scheduler.allocator.usage()
        return told if self._steady is None else self._steady.usage(told)

    @property
    def backlog(self) -> int:
        """Tokens of prompts that are here and not computed."""
        queue = self.scheduler.queue
        trunks = (g.branches[0] for line in (queue.running, queue.waiting) for g in line)
        missing = (each.num_prompt_tokens - each.num_computed for each in trunks)
        return self._line_tokens + sum(tokens for tokens in missing if tokens > 0)

    @property
    def predicted_wait(self) -> float:
        """The engine's prediction of the seconds until all waiting requests are admitted."""
        return self._estimate.of(self.scheduler.queue.num_new + len(self._line))

    # -- requests ------------------------------------------------------------------------------

    def due(self, pause: Pause) -> Pause:
        """When to continue, if a request has come since it paused."""
        run = self._run
        return pause if run is None else (run.due, ENDS if run.is_last else PLANS)

    def take(self, number: int, trace: TraceRequest, now: float) -> None:
        """Receive a request. number: its own among all, of one engine or of many.

        The engine may have to continue before the pause that it has announced: see ``due``.
        """
        self._line.append((number, trace, now))
        self._line_tokens += trace.prompt_tokens
        self._has_news = True
        if self._run is not None:
            self._run.cut(now)

    def catch_up(self, now: float) -> None:
        """Bring the engine's state up to date in the midst of steps taken together."""
        if self._run is not None:
            self._run.catch_up(now)

    def lose(self, now: float) -> list[LiveRequest]:
        """Let the engine die, whatever it does; returns the requests that the scheduler knew.

        Requests that were queued before it are lost elsewhere.
        """
        if self._run is not None:
            self._run.catch_up(now)
            self._count_waits(self._run)
        if self._steady is not None:
            self._steady.close(now, lost=self._under_way is not None)
        if self._under_way is not None:
            start, usage, running, waiting = self._under_way
            self._recorder.step(start, now, usage, running, waiting)
        self.scheduler.allocator.advance(now)
        for request_id in self._live:
            self.scheduler.abort(request_id)
        return list(self._live.values())

    def _admit(self) -> None:
        """Hand as many requests to the scheduler as one step could admit.

        Requests further back in the queue cannot matter yet, and would only take memory. But all
        are handed over if a wait may end, clients share or adapters wait.
        """
        limits = self.limits
        all_matter = limits.max_queue_time is not None or limits.scheduling_policy != "fcfs"
        all_matter = all_matter or limits.max_loras > 0  # requests that wait for a slot are passed
        all_matter = all_matter or self.observer is not None
        self._has_news = False
        while self._line and (
            all_matter or self.scheduler.queue.num_waiting <= limits.max_num_seqs
        ):
            self._add(*self._line.popleft())

    def _add(self, number: int, trace: TraceRequest, now: float) -> None:
        self._line_tokens -= trace.prompt_tokens
        try:
            request = self._maker.make(number, trace, now)
            group = self.scheduler.add(request)
        except RequestError as error:
            if self.observer is not None:
                self.observer.refused(now, Decision(Verdict.REFUSE, str(number), str(error)))
            self._on_end(self._recorder.refuse(str(number), now, str(error)), now)
        else:
            drafting = self._model.drafting
            own = None if drafting is None else drafting.profiles_of(trace)
            self._live[request.request_id] = LiveRequest(trace, request, group, own)

    def _profiles_of(self, request_id: str) -> Profiles:
        acceptance = self._live[request_id].acceptance
        assert acceptance is not None, "nobody asks where nobody drafts"
        return acceptance

    # -- steps ---------------------------------------------------------------------------------

    def steps(self, now: float) -> Iterator[Pause]:
        """Work off what is there, from ``now`` on. Pauses where others may come in between."""
        self._idle = True
        while not self.gave_up:
            self._admit()
            if not self.scheduler.has_work:
                return
            steady, after = self._steadied(now), None
            if steady is not None and self._fast_forward.is_alone(steady):
                after = yield from self._decode(steady, now)
                if after is None:
                    self._settle(now)
            now = (yield from self._step(now)) if after is None else after

    def _steadied(self, now: float) -> SteadyDecoding | None:
        """The groups that only decode in the next step, if others can be planned beside them."""
        forward, steady = self._fast_forward, self._steady
        mixes = forward.mixes and self._visit is None
        if steady is not None:
            if forward.goes_on(steady, now, mixes=mixes):
                return steady
            self._settle(now)
        skips = self._skip_ahead and self.observer is None
        self._steady = forward.begin(now, mixes=mixes) if skips else None
        return self._steady

    def _settle(self, now: float) -> None:
        """Look at everybody in the next step."""
        if self._steady is not None:
            self._steady.close(now)
            self._steady = None

    def _step(self, now: float) -> Generator[Pause, None, float]:
        """One step of the scheduler; when it ends."""
        scheduler = self.scheduler
        if self.speculation is not None:
            self.speculation.propose(scheduler)
        steady, others = self._steady, NOBODY if self._steady is None else self._steady.work
        step = scheduler.schedule(now, None if steady is None else partial(_lead, steady, now))
        if self._on_step is not None:
            self._on_step(now, step)
        if self.observer is not None:
            self.observer.planned(step)
        self._decide(now, step.decisions)
        work = work_of(step, self._sights, others)
        if self._idle:
            work, self._idle = work._replace(woken=1), False
        seconds = self._cost_model.seconds(work)
        if self._draft_model is not None:
            seconds += self._draft_model.seconds(step)
        end = now + seconds
        if self._visit is not None and end > self._visit.at:
            visit, self._visit = self._visit, None
            visit.look(now)
        running = scheduler.num_running_seqs
        usage = step.usage if steady is None else steady.usage(step.usage)
        self._begin(UnderWay(now, usage, running, self._num_waiting))
        yield end, ENDS
        self._end(end, work.num_tokens)
        gaps = None
        if steady is not None:
            gaps = steady.gaps(now, end)
            step.chunks[:0] = steady.finish(now)
        self._update(step, end, gaps)
        yield end, PLANS
        return end

    def _begin(self, under_way: UnderWay) -> None:
        self._estimate.observe(under_way.start)
        self._under_way = under_way

    def _end(self, end: float, num_tokens: int) -> None:
        assert self._under_way is not None, "it has begun"
        start, usage, running, waiting = self._under_way
        self._recorder.step(start, end, usage, running, waiting)
        self._under_way = None
        self.num_tokens += num_tokens
        self.busy_seconds += end - start

    def _update(self, step: Step, end: float, gaps: dict[float, int] | None = None) -> None:
        """Apply a step's results; ``gaps`` as for ``_progress``."""
        draft_model = self._draft_model
        done = step if draft_model is None else draft_model.filled(step)
        results = self._model.results(done, self._live)
        if draft_model is not None:
            draft_model.observe(results.outcomes)
        if self.speculation is not None:
            self.speculation.observe(step, results.outcomes, end - step.now)
            self._count_drafts(step, results.outcomes)
        progress: list[Progress] = []
        self.scheduler.update(step, results, end, progress.append)
        self._fast_forward.note(step, progress)
        self._progress(progress, end, gaps)
        if self.observer is not None:
            self.observer.ended(end, step, results.outcomes, progress)

    def _count_drafts(self, step: Step, outcomes: Mapping[int, Outcome]) -> None:
        for chunk in step.chunks:
            if chunk.drafts:
                request = self.scheduler.request_of(chunk.seq_id)
                assert request is not None, "who has drafts in a step has not ended before"
                accepted = len(outcomes[chunk.seq_id].tokens) - 1
                self._live[request.request_id].verified(len(chunk.drafts), accepted)

    @property
    def _num_waiting(self) -> int:
        return self.scheduler.queue.num_waiting + len(self._line)

    def _decide(self, now: float, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if decision.what is Verdict.EXPIRE:
                live = self._live.pop(decision.request_id)
                arrival = live.request.arrival
                self._on_end(
                    self._recorder.refuse(live.request.request_id, arrival, decision.why), now
                )
                continue
            if decision.what is not Verdict.WAIT:
                self._live[decision.request_id].decided(decision.what, now)
            self._recorder.decide(now, decision)

    def _progress(
        self, progress: Iterable[Progress], now: float, gaps: dict[float, int] | None = None
    ) -> None:
        """Take in new tokens. ``gaps``: times between tokens of this step that are known already,
        and how often each occurred."""
        gaps = {} if gaps is None else gaps
        for one in progress:
            request_id = one.request.request_id
            live = self._live[request_id]
            live.num_output_tokens += 1
            last = live.last_times.get(one.branch)
            live.last_times[one.branch] = now
            if last is None:
                if live.first_token_time is None:
                    live.first_token_time = now
            elif not live.trace.beam_search:  # a beam's tokens all come in the end
                gaps[now - last] = gaps.get(now - last, 0) + 1
            if one.finish_reason is not None:
                live.to_end -= 1
                if not live.to_end:
                    del self._live[request_id]
                    self._on_end(self._recorder.finish(live, now), now)
        self._recorder.gaps(gaps)

    # -- steps that only decode ----------------------------------------------------------------

    def _decode(self, steady: SteadyDecoding, now: float) -> Generator[Pause, None, float | None]:
        """Take such steps until something else happens; when they end. None: there was not one."""
        visit = math.inf if self._visit is None else self._visit.at
        run = self._run = SteadyRun(
            steady,
            now,
            self._num_waiting,
            begin=self._begin,
            over=self._end,
            gaps=self._recorder.gaps,
        )
        is_last = False
        while not (is_last or self._has_news) and run.foresee(self._cost_model.seconds, visit):
            yield run.due, ENDS if run.is_last else PLANS
            is_last = run.is_last  # unless a request has come
            run.catch_up(run.due)
        self._run = None
        if not run.num_steps:
            return None
        self._count_waits(run)
        if is_last:
            gaps = steady.gaps(run.start, run.end)
            self._update(Step([], steady.finish(run.start)), run.end, gaps)
            yield run.end, PLANS
        return run.end

    def _count_waits(self, run: SteadyRun) -> None:
        if run.num_waits:
            self.stats.decisions[Verdict.WAIT.value] += run.num_waits


def _lead(steady: SteadyDecoding, now: float, step: Step) -> tuple[int, int]:
    """Let these have a part in the step before all others."""
    step.moves.extend(steady.step(now))
    return steady.num_groups, len(steady)
