"""Requests in, text out: schedule, execute, update, one step after another."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from quire.engine.intake import Intake, PreparedRequest, Prompt
from quire.engine.outputs import Delta
from quire.engine.progress import RequestProgress
from quire.engine.recorder import RequestRecorder
from quire.engine.stats import EngineStats
from quire.errors import RequestError
from quire.scheduling import (
    Decision,
    Executor,
    SamplingParams,
    Scheduler,
    Step,
    StepResult,
    Verdict,
)

logger = logging.getLogger(__name__)

_DECISIONS_KEPT = 1000
_STEP_FAILED = "the step that computed this request failed; the log tells why"


class Engine:
    """Drives one scheduler and one executor. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        intake: Intake,
        *,
        block_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
        recorder: RequestRecorder | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.intake = intake
        self.clock = clock
        self.stats = EngineStats()
        self.executor = executor
        self._block_bytes = block_bytes  # of all layers, for the metrics of swaps
        self._requests: dict[str, RequestProgress] = {}
        self._recorder = recorder
        self._decisions: deque[Decision] = deque(maxlen=_DECISIONS_KEPT)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        arrival: float | None = None,
    ) -> None:
        """Queue a request, or refuse it with a RequestError that names the field."""
        arrival = self.clock() if arrival is None else arrival
        self.submit(self.intake.prepare(request_id, prompt, params, arrival))

    def submit(self, prepared: PreparedRequest) -> None:
        """Queue a request that the intake has prepared."""
        request_id = prepared.request.request_id
        try:
            group = self.scheduler.add(prepared.request)
        except RequestError as error:
            self._decisions.append(Decision(Verdict.REFUSE, request_id, str(error)))
            raise
        self._requests[request_id] = RequestProgress(
            prepared, group.memory, self.intake.tokenizer, self._block_bytes
        )
        if self._recorder is not None:
            self._recorder.begin(prepared.request)

    def abort(self, request_id: str) -> bool:
        """End a request and free its blocks at once; False if it is not running."""
        progress = self._requests.pop(request_id, None)
        if progress is not None:
            self._record(progress)
        return self.scheduler.abort(request_id)

    def close(self) -> None:
        """End the recording, if there is one."""
        if self._recorder is not None:
            self._recorder.close()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def decisions(self) -> list[Decision]:
        """The latest decisions about requests, oldest first."""
        return list(self._decisions)

    def step(self) -> list[Delta]:
        """One iteration of the model over the requests that the scheduler picks."""
        started = self.clock()
        step = self.scheduler.schedule(started)
        self._note(step)
        usage = self.scheduler.allocator.usage()
        try:
            result = self.executor.execute(step)
        except Exception:
            logger.exception("a step failed; the requests in it end with an error")
            self.scheduler.spoil(step.moves)
            return self._fail(step, dict.fromkeys((c.seq_id for c in step.chunks), _STEP_FAILED))
        now = self.clock()
        self.stats.observe_step(step, usage, now - started)
        self._take_prompt_logprobs(step, result)
        deltas = self._fail(step, result.failures)
        for progress in self.scheduler.update(step, result, now):
            request_id = progress.request.request_id
            request = self._requests[request_id]
            delta = request.advance(progress, now)
            if delta.finish_reason is not None and progress.finish_reason is None:
                self.scheduler.finish(progress.seq_id)  # a stop string
            if request.done:  # told once its blocks are free, and charged
                del self._requests[request_id]
                self._record(request)
                delta = replace(delta, final=request.final(now))
            deltas.append(delta)
        return deltas

    def _record(self, progress: RequestProgress) -> None:
        if self._recorder is not None:
            self._recorder.end(progress)

    def _note(self, step: Step) -> None:
        for decision in step.decisions:
            if decision.what is Verdict.WAIT and self._decisions:
                latest = self._decisions[-1]
                if latest.what is Verdict.WAIT and latest.request_id == decision.request_id:
                    self._decisions.pop()  # still waiting: keep only the newest figures
            self._decisions.append(decision)
            if decision.what.preempts:
                logger.info("%s", decision)

    def _take_prompt_logprobs(self, step: Step, result: StepResult) -> None:
        if not result.prompt_logprobs:
            return
        for chunk in step.chunks:
            logprobs = result.prompt_logprobs.get(chunk.seq_id)
            request = self._requests.get(chunk.request.request_id)
            if logprobs and request is not None:
                request.take_prompt_logprobs(chunk.start + 1, logprobs)

    def _fail(self, step: Step, failures: Mapping[int, str]) -> list[Delta]:
        """End the requests whose sequences failed; the others and the engine live on."""
        deltas = []
        for chunk in step.chunks:
            request = self._requests.get(chunk.request.request_id)
            if chunk.seq_id in failures and request is not None:
                del self._requests[chunk.request.request_id]
                self._record(request)
                self.scheduler.abort(chunk.request.request_id, spoiled=True)
                deltas.append(request.fail(failures[chunk.seq_id], self.clock()))
        return deltas
