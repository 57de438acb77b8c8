"""A recording of a server against its simulation: how far off, where they part, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from quire.core.errors import ConfigError
from quire.engine.metrics import RequestMetrics
from quire_lab.calibration.recorded import Recording, SeenRequest, retimed
from quire_lab.calibration.steps import RecordedStep
from quire_lab.simulation import CostModel, SimulationResult, Simulator, Work
from quire_lab.simulation.recorder import KeptResults
from quire_lab.simulation.result import RequestRecord

AGREES = 0.1
FEWEST = 20
"""Requests from which on their means say anything."""

_STRETCHES = 10


class ServedPair(NamedTuple):
    """A request as it was served, and as it was simulated."""

    real: SeenRequest
    simulated: RequestRecord
    metrics: RequestMetrics


@dataclass(frozen=True)
class Figure:
    """A mean over requests, or a total.

    half, most: half of the requests are off by no more, and nine in ten; None: of totals.
    """

    name: str
    unit: str  # "s" or ""
    real: float
    simulated: float
    half: float | None = None
    most: float | None = None

    @property
    def off(self) -> float | None:
        """The error relative to the recorded value; None: there is no such value."""
        if not self.real:
            return None if self.simulated else 0.0
        return self.simulated / self.real - 1

    @property
    def agrees(self) -> bool:
        """Within ten per cent; of what is counted, one more or less is no matter."""
        if not self.unit and abs(self.simulated - self.real) <= 1:
            return True
        return self.off is not None and abs(self.off) <= AGREES


class StepKind(NamedTuple):
    """Steps of one kind: what they took, and what the cost model says of these very steps."""

    name: str
    num_steps: int
    real: float
    costed: float


class Stretch(NamedTuple):
    """A part of the recording's time, and what became of the requests that came in it."""

    begin: float
    end: float
    num_requests: int
    real: float  # mean TTFT, in seconds
    simulated: float
    steps: float | None  # what steps took, over what they cost; None: none is known

    @property
    def agrees(self) -> bool:
        return abs(self.simulated - self.real) <= AGREES * self.real


@dataclass(frozen=True)
class Comparison:
    """A recording, and its simulation.

    equal: the figures if each recorded step had taken what it costs, so that their errors are not
        the costs'; empty if no steps are known.
    disturbed: the steps' times over their processor times; None: unknown.
    """

    recording: Recording
    result: SimulationResult
    figures: tuple[Figure, ...]
    equal: tuple[Figure, ...]
    kinds: tuple[StepKind, ...]
    stretches: tuple[Stretch, ...]
    disturbed: float | None

    def figure(self, name: str) -> Figure:
        return next(one for one in self.figures if one.name == name)

    @property
    def num_compared(self) -> int:
        return len(self.recording.requests) - self.result.num_refused

    @property
    def is_enough(self) -> bool:
        return self.num_compared >= FEWEST

    @property
    def agrees(self) -> bool:
        """Whether every figure does, however few requests that says it of."""
        return all(one.agrees for one in self.figures)

    @property
    def means_agree(self) -> bool:
        """Whether those that decide do."""
        return all(one.agrees for one in self.figures if one.name in DECIDING)

    @property
    def decides_alike(self) -> bool:
        """Whether they agree but for what steps cost."""
        return all(one.agrees for one in self.equal if one.name in DECIDING)

    @property
    def speed(self) -> float | None:
        """The recorded steps' times over their costs."""
        costed = sum(kind.costed for kind in self.kinds)
        return sum(kind.real for kind in self.kinds) / costed if costed else None


DECIDING = ("TTFT, mean", "TPOT, mean", "end to end, mean", "preemptions", "requests refused")
"""What the verdict is about first."""


def compare(recording: Recording, costs: CostModel) -> Comparison:
    """Simulate a recording with these costs and the engine's own settings.

    Raises:
        ConfigError: the simulation refuses every request that was served.
    """
    result = _simulate(recording, costs)
    pairs = _pairs(recording, result)
    equal: list[Figure] = []
    if recording.steps:
        durations = [costs.seconds(step.work) for step in recording.steps]
        again = retimed(recording, durations)
        simulated = _simulate(again, costs)
        equal = _figures(again, simulated, _pairs(again, simulated))
    return Comparison(
        recording,
        result,
        tuple(_figures(recording, result, pairs)),
        tuple(equal),
        _kinds(recording.steps, costs),
        tuple(_stretches(recording, pairs, costs)),
        _disturbed(recording),
    )


def _simulate(recording: Recording, costs: CostModel) -> SimulationResult:
    simulator = Simulator(recording.limits, costs, KeptResults(records=None))
    result = simulator.run(recording.workload())
    if not result.num_finished:
        raise ConfigError(f"the simulation refuses all that was served: {result.first_refusal}")
    return result


def _pairs(recording: Recording, result: SimulationResult) -> list[ServedPair]:
    found = []
    for record in result.records:
        if record.metrics is not None:
            real = recording.requests[int(record.request_id)]
            found.append(ServedPair(real, record, record.metrics))
    return sorted(found, key=lambda pair: pair.real.seen.in_line)


def _figures(
    recording: Recording, result: SimulationResult, pairs: Sequence[ServedPair]
) -> list[Figure]:
    parts: dict[str, Callable[[ServedPair], tuple[float | None, float | None]]] = {
        "TTFT": lambda pair: (pair.real.ttft, pair.metrics.ttft),
        "in line": lambda pair: (pair.real.queueing, _queueing(pair)),
        "prefill": lambda pair: (
            pair.real.ttft - pair.real.queueing,
            (pair.metrics.ttft or 0.0) - _queueing(pair),
        ),
        "TPOT": lambda pair: (pair.real.tpot, pair.metrics.tpot),
        "end to end": lambda pair: (pair.real.e2e_latency, pair.metrics.e2e_latency),
    }
    found = []
    for name, of in parts.items():
        both = [(a, b) for a, b in map(of, pairs) if a is not None and b is not None]
        if both:
            found += _of_requests(name, both)
    preempted = sum(pair.real.seen.num_preemptions for pair in pairs)
    cached = sum(pair.real.seen.cached_tokens for pair in pairs)
    simulated = result.preemptions.swaps + result.preemptions.recomputes
    found.append(Figure("preemptions", "", preempted, simulated))
    if result.num_refused:
        found.append(Figure("requests refused", "", 0, result.num_refused))
    hits = sum(pair.metrics.cached_tokens for pair in pairs)
    found.append(Figure("prompt tokens in the cache", "", cached, hits))
    if recording.steps:
        busy = sum(step.seconds for step in recording.steps)
        found.append(Figure("steps", "", len(recording.steps), result.num_steps))
        found.append(Figure("time in steps", "s", busy, result.busy_seconds))
    return found


def _queueing(pair: ServedPair) -> float:
    return (pair.simulated.admitted or 0.0) - pair.metrics.arrival_time


def _of_requests(name: str, both: Sequence[tuple[float, float]]) -> list[Figure]:
    """A figure's mean, with the errors of single requests; its median and 90th percentile."""
    off = sorted(abs(b / a - 1) if a else float(b > 0) for a, b in both)
    real, simulated = (sorted(values) for values in zip(*both, strict=True))
    half, most = len(both) // 2, len(both) * 9 // 10
    return [
        Figure(f"{name}, mean", "s", fmean(real), fmean(simulated), off[half], off[most]),
        Figure(f"{name}, p50", "s", real[half], simulated[half]),
        Figure(f"{name}, p90", "s", real[most], simulated[most]),
    ]


def _kinds(steps: Sequence[RecordedStep], costs: CostModel) -> tuple[StepKind, ...]:
    by_kind: dict[str, list[RecordedStep]] = {}
    for step in steps:
        by_kind.setdefault(_kind(step.work), []).append(step)
    return tuple(
        StepKind(
            name,
            len(by_kind[name]),
            sum(step.seconds for step in by_kind[name]),
            sum(costs.seconds(step.work) for step in by_kind[name]),
        )
        for name in ("after a rest", "with prompts", "decoding only", "moving blocks")
        if name in by_kind
    )


def _kind(work: Work) -> str:
    if work.woken:
        return "after a rest"
    if work.prefill_tokens:
        return "with prompts"
    return "decoding only" if work.decode_seqs else "moving blocks"


def _stretches(
    recording: Recording, pairs: Sequence[ServedPair], costs: CostModel
) -> list[Stretch]:
    first, length = recording.requests[0].seen.in_line, recording.seconds / _STRETCHES
    found = []
    for number in range(_STRETCHES):
        begin, end = number * length, (number + 1) * length
        own = [one for one in pairs if begin <= one.real.seen.in_line - first < end]
        steps = [one for one in recording.steps if begin <= (one.begin or 0.0) - first < end]
        costed = sum(costs.seconds(step.work) for step in steps)
        if own:
            real = fmean(one.real.ttft for one in own)
            simulated = fmean(one.metrics.ttft or 0.0 for one in own)
            took = sum(step.seconds for step in steps) / costed if costed else None
            found.append(Stretch(begin, end, len(own), real, simulated, took))
    return found


def _disturbed(recording: Recording) -> float | None:
    if recording.unit == "cpu" or not recording.steps:
        return None
    used = [step.cpu_seconds for step in recording.steps if step.cpu_seconds is not None]
    taken = sum(step.seconds for step in recording.steps)
    return taken / sum(used) if sum(used) else None
