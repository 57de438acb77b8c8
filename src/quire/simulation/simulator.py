"""The engine's loop on a virtual clock: the real scheduler and allocator, no model.

Orca's iteration-level scheduling makes a step the unit of time: arrivals during a step wait for
its end, as they do in ``Engine.step``.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

from quire.capacity import EngineLimits
from quire.drafting import Speculation
from quire.errors import RequestError
from quire.metrics import Goals
from quire.protocol import Decision, Outcome, Progress, Step, Verdict
from quire.scheduling.sequence import Sequence
from quire.simulation.acceptance import AcceptanceProfile
from quire.simulation.arrivals import Arrivals, OpenLoop
from quire.simulation.cost_model import CostModel
from quire.simulation.drafting import SimulatedDrafting
from quire.simulation.fast_forward import FastForward, SteadyDecoding
from quire.simulation.live import LiveRequest, RequestMaker
from quire.simulation.recorder import SimulationRecorder, map_blocks
from quire.simulation.result import RequestRecord, SimulationResult
from quire.simulation.sampling import SimulatedModel
from quire.simulation.work import decoding, sights_of, work_of
from quire.workload import TraceRequest


class Simulator:
    """One run of a workload, by an engine with these limits.

    seed: of the beams' candidates.
    skip_ahead: take steps that only decode together. The result is the same to the last bit. Steps
        that may verify drafts are never skipped.
    goals: what the result counts requests against.
    keep_records, keep_decisions: how many of each the result holds; None is all.
    map_at: seconds at which to note who owns which block.
    drafting: who drafts, and how well; None: nobody.
    most_missed: the run ends early, and the result tells only of what was until then, as soon as
        more requests than these have missed the goals.
    on_record: called with every request that has ended or was refused.
    on_step: called with the time and every step that the scheduler made; steps that were taken
        together are not among them.
    """

    def __init__(
        self,
        limits: EngineLimits,
        cost_model: CostModel,
        *,
        seed: int = 0,
        skip_ahead: bool = True,
        goals: Goals | None = None,
        keep_records: int | None = 0,
        keep_decisions: int | None = 0,
        map_at: float | None = None,
        drafting: SimulatedDrafting | None = None,
        most_missed: int | None = None,
        on_record: Callable[[RequestRecord], None] | None = None,
        on_step: Callable[[float, Step], None] | None = None,
    ) -> None:
        self.limits = limits
        self._cost_model = cost_model
        self._skip_ahead = skip_ahead and drafting is None
        self._sights = sights_of(limits.kv_groups)
        self._map_at = map_at
        self._most_missed = math.inf if most_missed is None else most_missed
        self._on_step = on_step
        self._scheduler = limits.scheduler(cost_model.recovery_costs(limits.block_size))
        self._fast_forward = FastForward(self._scheduler, limits)
        self._model = SimulatedModel(seed)
        self._maker = RequestMaker(limits.block_size, limits.enable_prefix_caching)
        self._recorder = SimulationRecorder(
            goals or Goals(), keep_records, keep_decisions, on_record
        )
        self._live: dict[str, LiveRequest] = {}
        self._drafting = drafting
        self._speculation: Speculation | None = None
        if drafting is not None:
            self._speculation = drafting.speculation(self._acceptance_of, seed)
        # Requests that have arrived, and that the scheduler need not know of yet.
        self._line: deque[TraceRequest] = deque()
        self._arrivals: Arrivals = OpenLoop(())
        self._num_arrived = 0
        self._idle = True  # nothing has run just before

    def run(self, workload: Iterable[TraceRequest]) -> SimulationResult:
        """Serve requests that come in order of arrival."""
        return self.serve(OpenLoop(workload))

    def serve(self, arrivals: Arrivals) -> SimulationResult:
        """Serve all that come, to the end. A simulator serves once."""
        self._arrivals = arrivals
        now = begin = arrivals.next_time or 0.0
        while self._recorder.num_missed <= self._most_missed:
            self._arrive(now)
            if not self._scheduler.has_work:
                if arrivals.next_time is None:
                    break
                now = max(now, arrivals.next_time)
                self._idle = True
                continue
            steady = self._fast_forward.begin() if self._skip_ahead else None
            after = None if steady is None else self._decode(steady, now)
            now = self._step(now) if after is None else after
        return self._recorder.result(self.limits, self._scheduler.stats, begin, now)

    # -- arrivals ------------------------------------------------------------------------------

    def _arrive(self, now: float) -> None:
        """Take in who has come. The scheduler gets as many as one step could admit.

        Whoever is further back in line cannot matter to it yet, and would only take memory; but
        where a wait may end, clients share or adapters wait, everybody does.
        """
        limits = self.limits
        all_matter = limits.max_queue_time is not None or limits.scheduling_policy != "fcfs"
        all_matter = all_matter or limits.max_loras > 0  # who waits for a slot is passed
        arrivals = self._arrivals
        while (time := arrivals.next_time) is not None and time <= now:
            self._line.append(arrivals.take())
        while self._line and (
            all_matter or self._scheduler.queue.num_waiting <= limits.max_num_seqs
        ):
            self._add(self._line.popleft())

    def _add(self, trace: TraceRequest) -> None:
        number = self._num_arrived
        self._num_arrived += 1
        try:
            self._check_length(trace)
            request = self._maker.make(number, trace)
            group = self._scheduler.add(request)
        except RequestError as error:
            self._recorder.refuse(str(number), trace.arrival, str(error))
            self._arrivals.ended(trace.arrival)
        else:
            own = None if self._drafting is None else self._drafting.profile_of(trace)
            self._live[request.request_id] = LiveRequest(trace, request, group, own)

    def _acceptance_of(self, request_id: str) -> AcceptanceProfile:
        acceptance = self._live[request_id].acceptance
        assert acceptance is not None, "nobody asks where nobody drafts"
        return acceptance

    def _check_length(self, trace: TraceRequest) -> None:
        length = trace.prompt_tokens + max(trace.output_tokens, trace.max_tokens or 0)
        longest = self.limits.max_model_len
        if longest is not None and length > longest:
            raise RequestError(
                f"{length} tokens of prompt and output are more than max_model_len, {longest}",
                "prompt",
            )

    # -- one step ------------------------------------------------------------------------------

    def _step(self, now: float) -> float:
        """One step of the scheduler; when it ends."""
        scheduler = self._scheduler
        if self._speculation is not None:
            self._speculation.propose(scheduler)
        step = scheduler.schedule(now)
        if self._on_step is not None:
            self._on_step(now, step)
        self._decide(now, step.decisions)
        work = work_of(step, self._sights)
        if self._idle:
            work, self._idle = work._replace(woken=1), False
        end = now + self._cost_model.seconds(work)
        if self._map_at is not None and end > self._map_at:
            self._recorder.block_map = map_blocks(now, scheduler.allocator, self._live.values())
            self._map_at = None
        running = scheduler.num_running_seqs
        self._recorder.step(now, end, step.usage, running, self._num_waiting)
        self._update(step, end)
        return end

    def _update(self, step: Step, end: float, gaps: dict[float, int] | None = None) -> None:
        """What the step has led to; ``gaps`` as for ``_progress``."""
        results = self._model.results(step, self._live)
        if self._speculation is not None:
            self._speculation.observe(step, results.outcomes, end - step.now)
            self._count_drafts(step, results.outcomes)
        progress: list[Progress] = []
        self._scheduler.update(step, results, end, progress.append)
        self._fast_forward.note(step, progress)
        self._progress(progress, end, gaps)

    def _count_drafts(self, step: Step, outcomes: Mapping[int, Outcome]) -> None:
        for chunk in step.chunks:
            if chunk.drafts:
                request = self._scheduler.request_of(chunk.seq_id)
                assert request is not None, "who has drafts in a step has not ended before"
                accepted = len(outcomes[chunk.seq_id].tokens) - 1
                self._live[request.request_id].verified(len(chunk.drafts), accepted)

    @property
    def _num_waiting(self) -> int:
        return self._scheduler.queue.num_waiting + len(self._line)

    def _decide(self, now: float, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if decision.what is Verdict.EXPIRE:
                live = self._live.pop(decision.request_id)
                self._recorder.refuse(decision.request_id, live.trace.arrival, decision.why)
                self._arrivals.ended(now)
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
                    self._recorder.finish(live, now)
                    self._arrivals.ended(now)
        self._recorder.gaps(gaps)

    # -- steps that only decode ----------------------------------------------------------------

    def _decode(self, steady: SteadyDecoding, now: float) -> float | None:
        """Such steps until something else happens; when they end. None: there was not one."""
        rows = [
            (self._live[group.request.request_id], branch) for _, group, branch in steady.members
        ]
        left = [live.output_tokens - branch.num_output_tokens for live, branch in rows]
        limit = min(left)
        count, context = len(rows), steady.num_context_tokens
        seconds, recorder, waiting = self._cost_model.seconds, self._recorder, self._num_waiting
        map_at = math.inf if self._map_at is None else self._map_at
        time = self._arrivals.next_time
        arrival = math.inf if time is None else time
        start = end = now
        while steady.num_steps < limit and end < arrival:
            stop = end + seconds(decoding(count, context))
            if stop > map_at or not steady.step(end):
                break
            start, end = end, stop
            context += count
            recorder.step(start, end, steady.usage(), count, waiting)
            if steady.num_steps < limit:  # else _close does it, with the tokens that end
                first = steady.num_steps == 1
                recorder.gaps(_gaps(rows, end) if first else {end - start: count})
        if not steady.num_steps:
            return None
        ending = [number == steady.num_steps for number in left]
        self._close(steady, rows, ending, start, end)
        return end

    def _close(
        self,
        steady: SteadyDecoding,
        rows: list[tuple[LiveRequest, Sequence]],
        ends: list[bool],
        start: float,
        end: float,
    ) -> None:
        """Bring all up to date; the last step, from ``start`` to ``end``, may have ended some."""
        steps = steady.num_steps
        going_on = [row for row, over in zip(rows, ends, strict=True) if not over]
        ending = [row for row, over in zip(rows, ends, strict=True) if over]
        chunks = steady.close(frozenset(branch.seq_id for _, branch in ending))
        gaps = _gaps(going_on, end) if steps == 1 else {end - start: len(going_on)}
        for live, branch in going_on:
            live.num_output_tokens += steps
            live.last_times[branch.index] = end
        if not ending:
            return
        for live, branch in ending:
            live.num_output_tokens += steps - 1
            if steps > 1:
                live.last_times[branch.index] = start
        self._update(Step([], chunks), end, gaps)


def _gaps(rows: Iterable[tuple[LiveRequest, Sequence]], now: float) -> dict[float, int]:
    """Times since the last token of each of these branches, and how often each occurs."""
    return Counter(now - live.last_times[branch.index] for live, branch in rows)
