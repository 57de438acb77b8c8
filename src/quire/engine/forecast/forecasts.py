"""Forecasts of an engine's requests, held against what came of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from quire.core.protocol import Request
from quire.core.scheduling import Scheduler, SequenceGroup
from quire.core.scheduling.sequence import Status
from quire.engine.events import RequestState, Taken, Watcher
from quire.engine.forecast.outlook import Expected, MostAtOnce, Outlook, TaskAhead
from quire.engine.forecast.step_times import StepTimes, StepWork

_FADING = 0.9  # what the length of a text counts for when another has ended
_LATEST = 512  # forecasts that are kept, with what came
_MOST_AHEAD = 256  # requests of which one thinks when another comes
_NEAR, _SOON = 0.2, 0.05  # a share of the time, or seconds, by which a good one may be off


@dataclass(frozen=True)
class Grade:
    """Of the latest forecasts, how many came true: to 20 % or 50 ms. null: there were none."""

    count: int
    first_tokens: float | None
    ends: float | None


class Forecasts(Watcher):
    """Learns the pace of steps and the lengths of texts, and grades itself.

    Nothing is said before some steps were seen, of requests that write nothing, and where so many
    wait that nobody could tell.
    """

    def __init__(self, scheduler: Callable[[], Scheduler], clock: Callable[[], float]) -> None:
        self._scheduler, self._clock = scheduler, clock
        self._times = StepTimes()
        self._length: float | None = None  # of texts that ended by themselves
        self._gain = 1.0  # tokens of a sequence in a step
        self._expected: dict[str, Expected] = {}
        self._kept: deque[tuple[bool, bool]] = deque(maxlen=_LATEST)

    def of(self, request_id: str) -> Expected | None:
        """What is expected of a request that has not ended."""
        return self._expected.get(request_id)

    @property
    def grade(self) -> Grade:
        """Of the latest ones."""
        kept = [*self._kept]
        if not kept:
            return Grade(0, None, None)
        first, end = (sum(one[n] for one in kept) / len(kept) for n in range(2))
        return Grade(len(kept), first, end)

    def began(self, request: Request) -> None:
        scheduler = self._scheduler()
        own = scheduler.group(request.request_id)
        if own is None or not self._times.is_known or request.pooling is not None:
            return
        if len(scheduler.running) + scheduler.queue.num_waiting > _MOST_AHEAD:
            return
        tasks = {group: self._task(scheduler, group, own) for group in self._before(own)}
        running = [task for group, task in tasks.items() if group.status is Status.RUNNING]
        waiting = [task for group, task in tasks.items() if group.status is not Status.RUNNING]
        usage, batch = scheduler.allocator.usage(), scheduler.batch
        most = MostAtOnce(batch.max_num_seqs, batch.max_num_batched_tokens, usage.capacity)
        found = Outlook(running, waiting, most, self._times.seconds).of(tasks[own])
        if found is not None:
            late = self._clock() - request.arrival
            self._expected[request.request_id] = Expected(*(late + each for each in found))

    def took(self, taken: Taken) -> None:
        if taken.seconds is None or not taken.step.chunks:
            return
        self._times.learn(StepWork.of(taken.step), taken.seconds)
        rows = sum(1 for chunk in taken.step.chunks if chunk.readout is not None)
        if rows and taken.num_tokens:
            self._gain += (taken.num_tokens / rows - self._gain) * (1 - _FADING)

    def ended(self, state: RequestState) -> None:
        metrics, expected = state.metrics, self._expected.pop(state.request.request_id, None)
        if state.reason == "stop" and metrics.num_output_tokens:
            length = metrics.num_output_tokens / max(1, len(state.outputs))
            known = length if self._length is None else self._length
            self._length = known * _FADING + length * (1 - _FADING)
        if expected is None or state.error is not None or metrics.ttft is None:
            return
        if state.reason in ("stop", "length"):
            first = _is_true(expected.first_token, metrics.ttft)
            self._kept.append((first, _is_true(expected.end, metrics.e2e_latency)))

    def _before(self, own: SequenceGroup) -> list[SequenceGroup]:
        """Who runs, and who waits up to this one."""
        scheduler = self._scheduler()
        waiting = [*scheduler.waiting]
        return [*scheduler.running, *waiting[: waiting.index(own) + 1]]

    def _task(self, scheduler: Scheduler, group: SequenceGroup, own: SequenceGroup) -> TaskAhead:
        trunk, request = group.branches[0], group.request
        prompt, context = trunk.num_pending, trunk.num_computed
        if group is own and group.status is Status.WAITING:
            found = min(scheduler.admission.found(group), prompt - 1)
            prompt, context = prompt - found, context + found
        written = trunk.num_output_tokens
        left = max(1.0, self._whole_length(request, written) - written)
        begun = written > 0 and prompt <= 1
        return TaskAhead(prompt, context, max(1, round(left / self._gain)), group.width, begun)

    def _whole_length(self, request: Request, written: int) -> float:
        """Tokens that it writes in all, by what others have written."""
        if request.params.ignore_eos or self._length is None:
            return request.max_tokens
        return min(request.max_tokens, max(self._length, 1.5 * written))


def _is_true(expected: float, found: float) -> bool:
    return abs(expected - found) <= max(_NEAR * found, _SOON)
