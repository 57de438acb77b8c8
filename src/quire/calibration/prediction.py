"""Predicted against measured: a trace through the real engine in real time, then simulated.

The engine records what it serves. The recording is simulated with calibrated costs and the
engine's own settings, and the requests' latencies are compared. A machine's speed changes from one
minute to the next; how it is now is probed before and after, with scenarios of the calibration, and
the costs are stretched by that.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean

from quire.assembly import build_engine
from quire.calibration.calibrate import undisturbed
from quire.calibration.grid import grid, serve
from quire.calibration.watch import WatchedEngine
from quire.config import EngineConfig
from quire.engine import Engine
from quire.engine.input_processor import PreparedRequest
from quire.errors import ConfigError
from quire.metrics import Distribution, RequestMetrics, Summary
from quire.protocol import SamplingParams
from quire.simulation import SimulationResult, Simulator
from quire.simulation.calibrated import Calibration
from quire.workload import Trace, TraceRequest

_PROBES = 6  # scenarios,
_PASSES = 3  # so many times each
_PREPARING = 1e-3  # seconds of a request, at most, before the first one comes


@dataclass(frozen=True)
class Comparison:
    """What requests saw of the real engine, and what a simulation says that they see."""

    measured: Sequence[RequestMetrics]
    predicted: SimulationResult
    busy_seconds: float  # in the real engine's steps
    costed_seconds: float  # what the cost model says of those very steps
    drifts: tuple[float, float]  # time that steps took before and after, over the calibrated

    def figures(self) -> dict[str, tuple[float, float]]:
        """Measured and predicted, by name; seconds but for the preemptions."""
        one = self.predicted
        preemptions = sum(metrics.num_preemptions for metrics in self.measured)
        ttft = _summary([metrics.ttft for metrics in self.measured])
        tpot = _summary([metrics.tpot for metrics in self.measured])
        return {
            "TTFT, mean": (ttft.mean, one.ttft.mean),
            "TTFT, p90": (ttft.p90, one.ttft.p90),
            "TPOT, mean": (tpot.mean, one.tpot.mean),
            "TPOT, p90": (tpot.p90, one.tpot.p90),
            "preemptions": (preemptions, one.preemptions.swaps + one.preemptions.recomputes),
            "all steps": (self.busy_seconds, one.busy_seconds),
            "the steps as measured": (self.busy_seconds, self.costed_seconds),
        }


def compare(
    config: EngineConfig, calibration: Calibration, requests: Sequence[TraceRequest]
) -> Comparison:
    """Serve requests at their times, and simulate what was recorded.

    Prompts are random tokens; each request gets as many as the trace says.

    Raises:
        ConfigError: there are no requests.
    """
    if not requests:
        raise ConfigError("requests must be at least one")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "recording.jsonl"
        config = replace(config, record_trace=str(path), async_scheduling=False)
        engine, capacity = build_engine(config)
        longest = capacity.max_model_len
        warm_up(engine)
        watched, probe = WatchedEngine(engine, capacity.limits), Probe(config, calibration)
        before = probe.drift()
        measured = _serve(watched, _clipped(requests, longest))
        engine.close()
        drifts = before, probe.drift()
        costs = calibration.costs.times(fmean(drifts))
        recording = list(Trace.open(path))[1:]  # without the warm-up
        predicted = Simulator(capacity.limits, costs).run(recording)
    return Comparison(
        measured,
        predicted,
        sum(step.seconds for step in watched.steps),
        sum(costs.seconds(step.work) for step in watched.steps),
        drifts,
    )


class Probe:
    """Tells how fast the machine is now, by an engine that serves nothing else."""

    def __init__(self, config: EngineConfig, calibration: Calibration) -> None:
        engine, capacity = build_engine(replace(config, record_trace=None, async_scheduling=False))
        scenarios = grid(config, capacity)
        self._scenarios = scenarios[:: max(1, len(scenarios) // _PROBES)]
        self._watched, self._costs, self._random = (
            WatchedEngine(engine, capacity.limits),
            calibration.costs,
            Random(0),
        )
        self.drift()  # the first steps of an engine are slower

    def drift(self) -> float:
        """The time that steps take, over what they were calibrated to take."""
        steps = []
        for scenario in self._scenarios:
            # As in calibration, or interruptions alone would make a drift.
            runs = [serve(self._watched, scenario, self._random) for _ in range(_PASSES)]
            steps += undisturbed(runs)
        expected = sum(self._costs.seconds(step.work) for step in steps)
        return sum(step.seconds for step in steps) / expected


def _clipped(requests: Sequence[TraceRequest], longest: int | None) -> Sequence[TraceRequest]:
    return requests if longest is None else [request.clipped(longest) for request in requests]


def warm_up(engine: Engine) -> None:
    """One request, so that none of those that count is the first."""
    engine.add_request("warm", [10] * 8, SamplingParams(max_tokens=8, ignore_eos=True))
    while engine.has_work:
        engine.step()


def _serve(watched: WatchedEngine, requests: Sequence[TraceRequest]) -> list[RequestMetrics]:
    """What each request saw, on the wall clock."""
    engine, done = watched.engine, []
    coming = _prepared(engine, requests)
    number = 0
    while number < len(coming) or engine.has_work:
        woken = not engine.has_work
        if woken:
            time.sleep(max(0.0, coming[number].request.arrival - engine.clock()))
        while number < len(coming) and coming[number].request.arrival <= engine.clock():
            engine.submit(coming[number])
            number += 1
        if engine.has_work:
            deltas = watched.step(woken=woken)
            done += [delta.final.metrics for delta in deltas if delta.final is not None]
    return done


def _prepared(engine: Engine, requests: Sequence[TraceRequest]) -> list[PreparedRequest]:
    """The requests, to be submitted at their arrival: a server prepares them in another thread."""
    random, vocabulary = Random(0), engine.input_processor.vocab_size
    start = engine.clock() + _PREPARING * len(requests)
    prepared = []
    for number, one in enumerate(requests):
        prompt = [random.randrange(vocabulary) for _ in range(one.prompt_tokens)]
        params = SamplingParams(max_tokens=one.output_tokens, ignore_eos=True)
        ready = engine.input_processor.prepare_params(params)
        prepared.append(
            engine.input_processor.prepare(str(number), prompt, ready, start + one.arrival)
        )
    return prepared


def _summary(values: Sequence[float | None]) -> Summary:
    seen = Distribution()
    for value in values:
        if value is not None:
            seen.add(value)
    return seen.summary()
