"""Requests in, text out: schedule, execute, update, one step after another."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from quire.capabilities.sessions import SessionManager
from quire.core.errors import EngineError, QueueTimeoutError, QuireError, RankError, RequestError
from quire.core.protocol import (
    Decision,
    Executor,
    Origin,
    Parts,
    PendingStep,
    Progress,
    Request,
    Step,
    StepResult,
    Verdict,
)
from quire.core.scheduling import Hooks, Scheduler, SequenceGroup
from quire.engine.capabilities import Capabilities
from quire.engine.events import Events, RequestState, Taken
from quire.engine.forecast import Expected, Forecasts
from quire.engine.input_processor import InputProcessor, PreparedParams, PreparedRequest, Prompt
from quire.engine.outputs import Delta, together
from quire.engine.progress import RequestProgress, broken_off, take_outcomes, taken
from quire.engine.stats import DecisionLog, EngineStats, PartTimes, count_faults
from quire.engine.waiting_room import QueueLimits, WaitingRoom
from quire.text.params import PoolingParams, SamplingParams

logger = logging.getLogger(__name__)
_TORN = "a step was interrupted half way, so that nothing of the engine can be relied on"
_STEP_FAILED = "the step that computed this request failed; the log tells why"


@dataclass(frozen=True)
class ExecutorTraits:
    """What an engine needs to know of its executor.

    block_bytes: of a block, in all layers.
    run_ahead: begin a step while the one before it is under way, where that can be done without
        its result. It pays where something else than the calling thread computes.
    parts: what the executor's time goes into.
    afresh: makes the executor forget all sequences, and gives another scheduler, and capabilities
        in the place of those that there are. None: that cannot be done.
    """

    block_bytes: int = 0
    run_ahead: bool = False
    parts: Parts = field(default_factory=Parts)
    afresh: Callable[[Capabilities], tuple[Scheduler, Capabilities]] | None = None


class Engine:
    """Drives one scheduler and one executor. Not thread-safe: one thread calls it.

    queue: of a server's requests alone.
    torn: for callers to keep: whether an exception has left one of the methods half way.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        input_processor: InputProcessor,
        traits: ExecutorTraits | None = None,
        *,
        capabilities: Capabilities | None = None,
        queue: QueueLimits = QueueLimits(),  # noqa: B008  # frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler, self.executor, self.clock = scheduler, executor, clock
        self.input_processor = input_processor
        self._traits = traits or ExecutorTraits()
        self.parts = self._traits.parts
        self.events, self.stats, self.log = Events(self.parts), EngineStats(), DecisionLog()
        under_way, tell = self._step_under_way, self._tell_expected
        self.forecasts = Forecasts(lambda: self.scheduler, under_way, clock, tell)
        for watcher in (self.stats, self.log, self.forecasts):
            self.events.add(watcher)
        self.part_times = PartTimes(self.events)
        self._begin_with(capabilities or Capabilities(SessionManager(clock=clock)))
        self.waiting_room = WaitingRoom(scheduler.queue, queue, self.forecasts.wait_of)
        self.torn = False
        self._pending: PendingStep | None = None  # begun by the last call of step()
        self._last_end = 0.0  # of a step
        self._requests: dict[str, RequestProgress] = {}
        self._early: list[Delta] = []  # of requests that have ended since the last step
        self._followed: set[str] = set()  # whose callers hear how far their prompts have come
        self._stops: dict[int, float] = {}  # seconds for stop strings in this step, by sequence

    def use(self, capabilities: Capabilities) -> None:
        """Have these from now on: those there are, and others that know of no request."""
        self.capabilities, self._hooks = capabilities, Hooks(capabilities)

    def _begin_with(self, capabilities: Capabilities) -> None:
        self.use(capabilities)
        for begins in self._hooks.engine_begins:
            begins(self.scheduler, self._hooks)

    @property
    def sessions(self) -> SessionManager:
        return self.capabilities.sessions

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        arrival: float | None = None,
    ) -> None:
        """Queue a request, or refuse it with a RequestError that names the field."""
        arrival = self.clock() if arrival is None else arrival
        prepared = self.input_processor.prepare_params(params)
        self.submit(self.input_processor.prepare(request_id, prompt, prepared, arrival))

    def submit(self, prepared: PreparedRequest) -> None:
        """Queue a request that the input processor has prepared."""
        self._accept(prepared, self.scheduler.add)

    def add_turn(
        self, request_id: str, session_id: str, params: SamplingParams, priority: int = 0
    ) -> None:
        """Queue the next turn of a session; aborted, it leaves what it has to the session."""
        self.submit_turn(
            request_id, session_id, self.input_processor.prepare_params(params), priority
        )

    def submit_turn(
        self,
        request_id: str,
        session_id: str,
        params: PreparedParams,
        priority: int = 0,
        origin: Origin = Origin(),  # noqa: B008  # frozen
    ) -> None:
        """Queue a turn whose params the input processor has prepared."""
        history = self.sessions.history(session_id, params.max_tokens or 1)
        session = self.sessions.get(session_id)
        prepare, arrival = self.input_processor.prepare_turn, self.clock()
        prepared = prepare(request_id, session, history, params, arrival, priority, origin)
        self._accept(prepared, partial(self.sessions.add_turn, session_id, history))

    def _accept(self, prepared: PreparedRequest, add: Callable[[Request], SequenceGroup]) -> None:
        request = prepared.request
        for begins in self._hooks.request_begins:
            begins(request)
        try:
            group = add(request)
        except RequestError as error:
            refused = Decision(Verdict.REFUSE, request.request_id, str(error))
            self.events.tell(self.events.refused, refused, self.clock())
            for ends in self._hooks.request_ends:
                ends(request)
            raise
        self._requests[request.request_id] = RequestProgress(
            prepared, group, self.input_processor.tokenizer, self._traits.block_bytes
        )
        if request.origin.progress:
            self._followed.add(request.request_id)
        self.events.tell(self.events.began, request)
        longest = self.scheduler.max_queue_time
        if longest is not None:
            self.events.tell(self.events.gathered)
        if longest is not None and self.forecasts.will_wait(longest):
            seconds = self.waiting_room.seconds_until(self.scheduler.queue.num_new)
            why = f"the request would wait longer than max_queue_time, {longest:g} s, to be let in"
            self._end_early(request.request_id, QueueTimeoutError(why, seconds))

    def abort(self, request_id: str, error: QuireError | None = None) -> bool:
        """End a request and free its blocks at once; False if it is not running.

        If it is part of a step under way, that is waited for, to know whether the blocks that the
        step fills hold what they should. error: why it ends, if its caller has not ended it.
        """
        invalid = False
        pending, group = self._pending, self.scheduler.group(request_id)
        if pending is not None and group is not None:
            branches = {branch.seq_id for branch in group.branches}
            if any(chunk.seq_id in branches for chunk in pending.step.chunks):
                pending.wait()
                invalid = pending.has_failed
        progress = self._requests.pop(request_id, None)
        if progress is not None:
            self._note_end(progress, broken_off(error), error)
        return self.scheduler.abort(request_id, invalid=invalid)

    def end(self, request_id: str, error: QuireError) -> Delta | None:
        """Abort a request; returns its caller's last delta, or None if it is not running."""
        progress = self._requests.get(request_id)
        if progress is None:
            return None
        self.abort(request_id, error)
        return progress.fail(error, self.clock())

    def audit(self) -> None:
        """While there is nothing to do: check memory's counters, and log what is wrong."""
        self.stats.num_faults += count_faults(self.scheduler)
        for change in self._hooks.contents_change:
            change(self.scheduler)

    def reset_prefix_cache(self) -> None:
        """Let nobody find what has been computed until now; see ``Scheduler.clear_contents``."""
        if self._pending is not None:
            self._pending.wait()  # it may store something
        self.scheduler.clear_contents()
        for change in self._hooks.contents_change:
            change(self.scheduler)

    def put_away(self) -> None:
        """Store what has been computed and is not stored yet, as far as there is room for it."""
        cache = self.scheduler.prefix_cache
        moves = [] if cache is None else cache.store()
        if moves:
            self.executor.submit(Step(moves)).collect()

    def renew(self) -> None:
        """Begin anew, as after a start: with no request, no session and nothing to be found.

        For when nobody knows any more what is as it should be. EngineError: that cannot be.
        """
        if self._traits.afresh is None:
            raise EngineError(_TORN)
        if self._pending is not None:
            self._pending.wait()
        self._tell_all_end(EngineError(_TORN))
        self._pending, self._requests, self._early, self._stops = None, {}, [], {}
        self._followed = set()
        self.scheduler, capabilities = self._traits.afresh(self.capabilities)
        self._begin_with(capabilities)
        limits, forecast = self.waiting_room.limits, self.forecasts.wait_of
        self.waiting_room = WaitingRoom(self.scheduler.queue, limits, forecast)
        self.reset_prefix_cache()
        self.torn = False

    def close(self) -> None:
        """End what has threads, processes or files of its own; write what is to be stored."""
        self._tell_all_end(EngineError("the engine has been stopped"))  # it was not waited for
        self.events.close()
        for close in self._hooks.close:
            close()

    def _tell_expected(self, request_id: str, expected: Expected) -> None:
        progress = self._requests.get(request_id)
        if progress is not None:
            progress.expected = expected

    def _step_under_way(self) -> Step | None:
        return None if self._pending is None else self._pending.step

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or self._pending is not None

    def decisions(self) -> list[Decision]:
        """The latest decisions about requests, oldest first."""
        return [noted.decision for noted in self.log.since(0)]

    def states(self) -> list[RequestState]:
        """The states of requests that have not ended."""
        now = self.clock()
        return [one.state(now) for one in self._requests.values()]

    def progress(self, request_id: str) -> RequestProgress | None:
        """A request's outputs; None once it has ended."""
        return self._requests.get(request_id)

    def step(self) -> list[Delta]:
        """Take in one step of the model over the requests that the scheduler picks.

        With ``run_ahead``, the next one is begun before, where it can be planned already.
        """
        with self.parts["step"]:
            pending = self._pending or self._begin_now()
            self._pending = self._begin_next(pending) if self._traits.run_ahead else None
            deltas, event = self._take_in(pending)
            if self._early:
                deltas, self._early = self._early + deltas, []
            for change in self._hooks.contents_change:
                change(self.scheduler)
        self.events.tell(self.events.took, event)
        if self.events.rested and not self.has_work:
            self.events.tell(self.events.rested)
        return deltas

    def _begin_now(self) -> PendingStep:
        for prepare in self._hooks.prepare:
            if (unready := prepare(self.scheduler)) is not None:
                self._end_unready(*unready)
        if self.scheduler.queue.sitting:
            for recall in self._hooks.recall:
                recall(self.scheduler)
        with self.parts["plan"]:
            if self.forecasts.unsaid:
                self.events.tell(self.events.gathered)
            for propose in self._hooks.propose:
                propose(self.scheduler)
            step = self.scheduler.schedule(self.clock())
        pending = self._begin(step)
        if not step.chunks:
            for rest in self._hooks.rest:
                rest()
        return pending

    def _begin_next(self, pending: PendingStep) -> PendingStep | None:
        if pending.has_failed or self.scheduler.queue.sitting:
            return None
        if any(waits(self.scheduler) for waits in self._hooks.waits):
            return None
        with self.parts["plan"]:
            if self.forecasts.unsaid:
                self.events.tell(self.events.gathered)
            step = self.scheduler.schedule_ahead(pending.step, self.clock())
        return None if step is None else self._begin(step)

    def _begin(self, step: Step) -> PendingStep:
        if self.events.planned:
            self.events.tell(self.events.planned, step)
        if step.decisions or self.log.waiting:
            self.events.tell(self.events.decided, step)
            self._heed(step.decisions)
        self.waiting_room.observe(step.now)
        try:
            return self.executor.submit(step)
        except RankError:
            raise
        except BaseException as error:
            return PendingStep.failed(step, error)

    def _take_in(self, pending: PendingStep) -> tuple[list[Delta], Taken]:
        """Wait for a step, and process its result."""
        try:
            result = pending.collect()
        except RankError:
            raise
        except Exception:
            logger.exception("a step failed; the requests in it end with an error")
            return self._give_up(pending), taken(pending.step, None, ())
        except BaseException:  # it is no less a failed step; who hears of it, hears of this first
            self._early += self._give_up(pending)
            raise
        with self.parts["update"]:
            return self._update(pending.step, result)

    def _update(self, step: Step, result: StepResult) -> tuple[list[Delta], Taken]:
        now = self.clock()
        seconds = now - max(step.now, self._last_end)
        for observe in self._hooks.observe:
            observe(step, result.outcomes, seconds)
        self._last_end = now
        if result.failed_moves:
            swaps = [move for move in result.failed_moves if move.content is None]
            self.stats.num_failed_swaps += len(swaps)
        if result.delays or self._stops:
            result = self._delayed(result)
        failures, right, drafts = take_outcomes(step, result.outcomes, self._request_of)
        failed = self._fail(failures) if failures else []
        news = self._follow(step, now) if self._followed else []
        ended: dict[str, None] = {}  # requests of which an output has, in order

        def told(progress: Progress) -> bool:
            request_id, seq_id = progress.request.request_id, progress.seq_id
            request = self._requests[request_id]
            if right and right.get(seq_id, 0):
                right[seq_id] -= 1
                request.num_accepted_tokens += 1
            began = self.clock() if request.looks_for_stops else 0.0
            delta = request.advance(progress, now)
            news.append(delta)
            if began and (spent := self.clock() - began):
                self._stops[seq_id] = self._stops.get(seq_id, 0.0) + spent
                request.beside_seconds += spent
            if delta.finish_reason is None:
                return False
            ended[request_id] = None
            return True

        self.scheduler.update(step, result, now, told)
        deltas = failed + (together(news) if len(news) > 1 else news)
        if ended:
            self._tell_ends(deltas, ended, now)
        return deltas, taken(step, seconds, deltas, drafts)

    def _follow(self, step: Step, now: float) -> list[Delta]:
        """The progress of prompts in a step, for callers that follow it."""
        found = list[Delta | None]()
        for chunk in step.chunks:
            progress = self._request_of(chunk.seq_id)
            if progress is not None and progress.request.request_id in self._followed:
                found.append(progress.read(chunk, step.now, now))
        return [delta for delta in found if delta is not None]

    def _delayed(self, result: StepResult) -> StepResult:
        """With what stop strings took in the step before, which counts as of this one."""
        delays, self._stops = self._stops, {}
        for seq_id, seconds in result.delays.items():
            delays[seq_id] = delays.get(seq_id, 0.0) + seconds
            request = self._request_of(seq_id)
            if request is not None:
                request.beside_seconds += seconds
        return replace(result, delays=delays)

    def _tell_ends(self, deltas: list[Delta], ended: Iterable[str], now: float) -> None:
        """A request's end is told with its last delta, once its blocks are free, and charged."""
        last = {d.request_id: i for i, d in enumerate(deltas) if d.finish_reason is not None}
        for request_id in ended:
            request, i = self._requests[request_id], last[request_id]
            if request.done:
                del self._requests[request_id]
                deltas[i] = request.last(deltas[i], now)
                self._note_end(request, deltas[i].finish_reason, deltas[i].failure)

    def _give_up(self, pending: PendingStep) -> list[Delta]:
        """End the requests of a step that failed, and of the one that was to go on from it."""
        steps = [pending.step]
        if self._pending is not None:
            self._pending.wait()  # nobody needs what it gives, but it must not go on
            steps.append(self._pending.step)
            self._pending = None
        deltas = []
        for step in steps:
            self.scheduler.invalidate(step)
            failed = EngineError(_STEP_FAILED)
            deltas += self._fail(dict.fromkeys((c.seq_id for c in step.chunks), failed))
        return deltas

    def _note_end(
        self, progress: RequestProgress, reason: str | None, error: QuireError | None
    ) -> None:
        for ends in self._hooks.request_ends:
            ends(progress.request)
        self._followed.discard(progress.request.request_id)
        self._tell_end(progress, reason, error)

    def _tell_end(
        self, progress: RequestProgress, reason: str | None, error: QuireError | None
    ) -> None:
        if self.events.ended:
            self.events.tell(self.events.ended, progress.state(self.clock(), reason, error))

    def _tell_all_end(self, error: QuireError) -> None:
        for progress in [*self._requests.values()]:
            self._tell_end(progress, broken_off(error), error)

    def _heed(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            progress = self._requests.get(decision.request_id)
            if decision.what.preempts:
                names = {"engine_request_id": decision.request_id}
                if progress is not None:
                    names["request_id"] = progress.request.origin.request_id
                logger.info("%s", decision, extra=names)
            elif decision.what is Verdict.EXPIRE:
                seconds = self.waiting_room.seconds_until(self.scheduler.queue.num_new)
                why = QueueTimeoutError(f"the request {decision.why}", seconds)
                self._end_early(decision.request_id, why)

    def _end_unready(self, concerns: Callable[[Request], bool], error: QuireError) -> None:
        """End the requests that lack something which cannot be had."""
        for request_id, progress in [*self._requests.items()]:
            if concerns(progress.request):
                self._end_early(request_id, error)

    def _end_early(self, request_id: str, error: QuireError) -> None:
        """End it between two steps, of which the next one gives what its caller is to be told."""
        delta = self.end(request_id, error)
        if delta is not None:
            self._early.append(delta)

    def _request_of(self, seq_id: int) -> RequestProgress | None:
        request = self.scheduler.request_of(seq_id)
        return None if request is None else self._requests.get(request.request_id)

    def _fail(self, failures: Mapping[int, QuireError]) -> list[Delta]:
        """End the requests whose sequences failed; the others and the engine live on."""
        deltas = []
        for seq_id, error in failures.items():
            request = self._request_of(seq_id)
            if request is not None:
                request_id = request.request.request_id
                del self._requests[request_id]
                self._note_end(request, broken_off(error), error)
                self.scheduler.abort(request_id, invalid=True)
                deltas.append(request.fail(error, self.clock()))
        return deltas
