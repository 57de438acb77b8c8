"""A server's recording: its requests, what they experienced, and its steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from quire.core.errors import ConfigError
from quire.core.limits import EngineLimits
from quire.engine.traces.request import Seen, TraceRequest
from quire_lab.calibration.steps import RecordedStep, check_unit, read_steps
from quire_lab.contiguous import limits_of_values
from quire_lab.workload import read_recording, recorded_engine

_CLOSE = 1e-3  # seconds between what the two files call the same moment, at most
_ROUNDED = 2e-6  # seconds
_LATE = 1.0  # seconds by which an admission may precede all steps, or an end follow them


@dataclass(frozen=True)
class SeenRequest:
    """A request, whose arrival is when it was queued, and its outcome."""

    request: TraceRequest
    seen: Seen

    @property
    def queueing(self) -> float:
        return max(0.0, self.seen.admitted - self.seen.in_line)

    @property
    def ttft(self) -> float:
        return self.seen.first_token - self.seen.in_line

    @property
    def e2e_latency(self) -> float:
        return self.seen.finished - self.seen.in_line

    @property
    def tpot(self) -> float | None:
        gaps = self.seen.output_tokens - 1
        return (self.seen.finished - self.seen.first_token) / gaps if gaps > 0 else None


@dataclass(frozen=True)
class Recording:
    """A server's requests in order, and its steps, if there are any.

    unit: of all times: seconds of the clock, or of the processor.
    num_left_out: requests whose outcome is unknown.
    preparing: mean seconds of a request before it was queued: read, tokenized.
    """

    model: str
    limits: EngineLimits
    unit: str
    requests: Sequence[SeenRequest]
    steps: Sequence[RecordedStep]
    num_left_out: int
    preparing: float

    @property
    def seconds(self) -> float:
        """Seconds from the first queued request to the last token."""
        first = self.requests[0].seen.in_line
        return max(one.seen.finished for one in self.requests) - first

    def workload(self) -> list[TraceRequest]:
        """The requests to simulate."""
        first = self.requests[0].seen.in_line
        times = accumulate((one.seen.in_line - first for one in self.requests), max)
        pairs = zip(self.requests, times, strict=True)
        return [replace(one.request, arrival=time) for one, time in pairs]


def open_recording(path: Path, steps: Path | None = None, unit: str = "wall") -> Recording:
    """Read the files of ``--record-trace`` and ``--record-steps``.

    unit "cpu": as if each step had taken its processor time: a recording of the same engine on a
    machine that it has to itself.

    Raises:
        ConfigError: the files lack something, or are of different runs.
    """
    values = recorded_engine(path)
    told = list(read_recording(path))
    requests = [SeenRequest(one, one.seen) for one in told if one.seen is not None]
    if not requests:
        raise ConfigError(f"{path} does not tell what became of any request")
    if any(one.request.drafts is not None and any(one.request.drafts) for one in requests):
        raise ConfigError(f"{path} was recorded with speculation, which is not compared")
    if unit == "cpu" and steps is None:
        raise ConfigError("unit cpu needs the steps: quire serve --record-steps FILE")
    first = requests[0]
    start = first.seen.in_line - first.request.arrival  # arrivals count from the first
    preparing = [one.seen.in_line - start - one.request.arrival for one in requests]
    recording = Recording(
        str(values.get("model", "")),
        limits_of_values(values.get("limits", {})),
        "wall",
        requests,
        () if steps is None else _within(read_steps(steps), requests, steps),
        len(told) - len(requests),
        sum(preparing) / len(preparing),
    )
    if recording.steps:
        recording = replace(recording, requests=_by_step(recording))
    if unit == "cpu" and steps is not None:
        check_unit(recording.steps, unit, steps)
        used = [step.cpu_seconds or 0.0 for step in recording.steps]
        return replace(retimed(recording, used), unit=unit)
    return recording


def _within(
    steps: Sequence[RecordedStep], requests: Sequence[SeenRequest], path: Path
) -> list[RecordedStep]:
    """The steps from the first request on."""
    if steps[0].begin is None:
        raise ConfigError(f"{path} has no column begin: it does not tell when steps began")
    first, last = requests[0].seen.in_line, max(one.seen.finished for one in requests)
    within = [step for step in steps if first - _CLOSE <= (step.begin or 0.0) <= last]
    if not within:
        raise ConfigError(f"{path} holds no step of the time of the requests: is it of this run?")
    begin, end = steps[0].begin, max((step.begin or 0.0) + step.seconds for step in within)
    admitted = min(one.seen.admitted for one in requests)
    if begin > admitted + _LATE or end < last - _LATE:
        raise ConfigError(
            f"{path} tells of steps from {begin:,.1f} to {end:,.1f} s, but requests were served "
            f"from {admitted:,.1f} to {last:,.1f} s: it is not whole"
        )
    return within


def _by_step(recording: Recording) -> list[SeenRequest]:
    """The requests with their admission at the beginning of the step that computed them first.

    A step is planned a moment after it begins: after a pause the engine has to wake up.
    """
    begins = [step.begin or 0.0 for step in recording.steps]
    requests = []
    for one in recording.requests:
        step = bisect_right(begins, one.seen.admitted + _ROUNDED) - 1
        begin = max(one.seen.in_line, begins[max(0, step)])
        seen = one.seen._replace(admitted=min(begin, one.seen.admitted))
        requests.append(replace(one, seen=seen))
    return requests


def retimed(recording: Recording, durations: Sequence[float]) -> Recording:
    """The recording as if each step had taken these seconds.

    A request that came during a step still comes during it, and one that came in a pause as long
    after its beginning: the engine would have decided the same.
    """
    moved = _clock(recording.steps, durations)
    requests = []
    for one in recording.requests:
        in_line, admitted, first, finished = map(moved, one.seen[:4])
        seen = Seen(in_line, admitted, first, finished, *one.seen[4:])
        requests.append(replace(one, seen=seen))
    steps = [
        step._replace(begin=moved(step.begin or 0.0), seconds=seconds)
        for step, seconds in zip(recording.steps, durations, strict=True)
    ]
    return replace(recording, requests=requests, steps=steps)


def _clock(steps: Sequence[RecordedStep], durations: Sequence[float]) -> Callable[[float], float]:
    """A function from the recording's clock to one on which each step lasts these seconds."""
    walls, shown = [0.0], [0.0]
    for step, seconds in zip(steps, durations, strict=True):
        begin = max(step.begin or 0.0, walls[-1])
        rest = begin - walls[-1]
        walls += [begin, begin + step.seconds]
        shown += [shown[-1] + rest, shown[-1] + rest + seconds]

    def moved(time: float) -> float:
        place = bisect_right(walls, time) - 1
        if place + 1 == len(walls):
            return shown[place] + time - walls[place]
        length = walls[place + 1] - walls[place]
        share = (time - walls[place]) / length if length > 0 else 0.0
        return shown[place] + share * (shown[place + 1] - shown[place])

    return moved
