"""Predicted against measured: a trace through the real engine in real time, then simulated.

The engine records what it serves. The recording is simulated with calibrated costs and the
engine's own settings (``comparison``). A machine's speed changes from one minute to the next; how
it is now is probed before and after, with scenarios of the calibration, and the costs are
stretched by that.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import NamedTuple, Protocol

from quire.core.errors import ConfigError
from quire.engine.assembly import build_engine
from quire.engine.capacity import Capacity
from quire.engine.config import EngineConfig
from quire.engine.engine import Engine
from quire.engine.input_processor import PreparedRequest
from quire.engine.recorder import RequestRecorder, StepRecorder
from quire.engine.traces.request import TraceRequest
from quire.engine.work import sights_of
from quire.text.params import SamplingParams
from quire_lab.calibration.calibrate import undisturbed
from quire_lab.calibration.comparison import Comparison, compare
from quire_lab.calibration.grid import grid, serve
from quire_lab.calibration.recorded import open_recording
from quire_lab.calibration.watch import WatchedEngine
from quire_lab.simulation.calibrated import Calibration
from quire_lab.workload.clipping import clipped

_PROBES = 6  # scenarios,
_PASSES = 3  # times for each
_PREPARING = 1e-3  # seconds of a request, at most, before the first one comes
_LONGEST_REST = 0.1  # seconds on the processor's clock: as long as when calibrating


class PredictedRun(NamedTuple):
    comparison: Comparison
    drifts: tuple[float, float]  # time that steps took before and after, over the calibrated


def predict(
    config: EngineConfig, calibration: Calibration, requests: Sequence[TraceRequest]
) -> PredictedRun:
    """Serve requests at their times, and simulate the recording.

    Prompts are random tokens; each request gets as many as in the trace. If costs are processor
    time, so is the engine's clock: requests arrive by it, and other processes cannot lengthen a
    step.

    Raises:
        ConfigError: there are no requests.
    """
    if not requests:
        raise ConfigError("requests must be at least one")
    config = replace(config, record_trace=None, record_steps=None, async_scheduling=False)
    with tempfile.TemporaryDirectory() as directory:
        trace, steps = Path(directory) / "trace.jsonl", Path(directory) / "steps.csv"
        engine, capacity = build_engine(config)
        clock: RestingClock = WallClock() if calibration.unit == "wall" else ProcessorClock()
        engine.clock = clock
        warm_up(engine)
        _record(engine, capacity, clock, trace, steps)
        probe = SpeedProbe(config, calibration)
        before = probe.drift()
        _serve(engine, clock, _clipped(requests, capacity.limits.max_model_len))
        engine.close()
        drifts = before, probe.drift()
        recording = replace(open_recording(trace, steps), unit=calibration.unit)
    return PredictedRun(compare(recording, calibration.costs.times(fmean(drifts))), drifts)


class RestingClock(Protocol):
    def __call__(self) -> float: ...

    def rest_until(self, time: float) -> None: ...


class WallClock:
    def __call__(self) -> float:
        return time.monotonic()

    def rest_until(self, until: float) -> None:
        time.sleep(max(0.0, until - self()))


class ProcessorClock:
    """Goes on while this thread computes, and is put forward after a rest."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.thread_time() + self._ahead

    def rest_until(self, until: float) -> None:
        time.sleep(max(0.0, min(_LONGEST_REST, until - self())))
        self._ahead += max(0.0, until - self())


def _record(
    engine: Engine, capacity: Capacity, clock: RestingClock, trace: Path, steps: Path
) -> None:
    limits, started = capacity.limits, clock()
    told = {"model": capacity.model_name, "limits": limits.values()}
    engine.events.add(RequestRecorder(trace, limits.block_size, started, engine=told))
    engine.events.add(StepRecorder(steps, sights_of(limits.kv_groups), started, clock))


class SpeedProbe:
    """Measures how fast the machine is now, with an engine that serves nothing else."""

    def __init__(self, config: EngineConfig, calibration: Calibration) -> None:
        engine, capacity = build_engine(config)
        scenarios = grid(config, capacity)
        self._scenarios = scenarios[:: max(1, len(scenarios) // _PROBES)]
        self._watched, self._costs, self._random = (
            WatchedEngine(engine, capacity.limits, calibration.unit),
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
    return requests if longest is None else [clipped(request, longest) for request in requests]


def warm_up(engine: Engine) -> None:
    """Serve one request, so that none of those that count is the first."""
    engine.add_request("warm", [10] * 8, SamplingParams(max_tokens=8, ignore_eos=True))
    while engine.has_work:
        engine.step()


def _serve(engine: Engine, clock: RestingClock, requests: Sequence[TraceRequest]) -> None:
    coming = _prepared(engine, requests)
    number = 0
    while number < len(coming) or engine.has_work:
        if not engine.has_work:
            clock.rest_until(coming[number].request.arrival)
        while number < len(coming) and coming[number].request.arrival <= clock():
            engine.submit(coming[number])
            number += 1
        if engine.has_work:
            engine.step()


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
