"""``quire calibrate``: measures this machine's step times, fits them, and checks the fit.

The real engine serves a grid of scenarios, in several passes; runs that other processes slowed down
are left out. Every fourth scenario is held out of the fit, to show its error. With a time limit the
coarse of the grid comes first, so that what is measured by then spans all of it.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

from quire.core.errors import ConfigError
from quire.core.memory import BlockMove, MoveKind
from quire.core.protocol import Executor, Step
from quire.engine.assembly import DEMO_NAME, build_engine
from quire.engine.assembly.draft import draft_directory, draft_name
from quire.engine.capacity import Capacity
from quire.engine.config import EngineConfig
from quire.models.demo import DEMO_MODEL
from quire.models.loader import resolve_model
from quire.models.shape import read_shape
from quire_lab.calibration.fit import fit
from quire_lab.calibration.grid import Scenario, grid, serve
from quire_lab.calibration.imported import errors
from quire_lab.calibration.stages import Run, Stages
from quire_lab.calibration.watch import WatchedEngine
from quire_lab.simulation.calibrated import Calibration, DraftCalibration

_PASSES = 4
_FEWEST = 12  # scenarios, whatever the time limit
_LONG = 60.0  # seconds; a pass that takes longer is the last
_DISTURBED = 1.15  # times a scenario's quickest run
_HELD_OUT = 4
_MOVES = 32
_REPEATS = 3

Progress = Callable[[str, float], None]
"""Called with what is being measured, and the share of all that is done."""


def calibrate(
    config: EngineConfig,
    progress: Progress,
    unit: str = "wall",
    limit: float | None = None,
    path: Path | None = None,
) -> Calibration:
    """Measure and fit.

    limit: seconds after which no further scenario is begun; None: there is time for four passes.
    path: where what is measured is kept meanwhile, and found again; None: nowhere.

    Raises:
        ConfigError: the pool or the length is too small to see anything.
    """
    # Steps one by one: what they cost cannot be seen where they overlap with their planning. And
    # no drafts but the grid's own.
    alone = replace(config, async_scheduling=False, speculative_config=None)
    stages = Stages(path, {"config": asdict(config), "unit": unit, "machine": platform.node()})
    with_draft = config.speculation is not None and config.speculation.has_draft_model
    grids = 2 if with_draft else 1
    seconds = None if limit is None else limit / grids
    measuring = _Measuring("model", unit, stages, _part(progress, 0, grids), seconds)
    found, draft = measuring.of(alone), None
    if config.speculation is not None and with_draft:
        name = draft_name(config.speculation)
        progress(f"passes of {name}", 1 / grids)
        measuring = _Measuring("draft", unit, stages, _part(progress, 1, grids), seconds)
        draft = _draft(config, alone, measuring)
    stages.end()
    return replace(found, draft=draft)


def _part(progress: Progress, number: int, count: int) -> Progress:
    """One of ``count`` parts that are as long."""
    return lambda text, share: progress(text, (number + share) / count)


def _draft(config: EngineConfig, alone: EngineConfig, measuring: _Measuring) -> DraftCalibration:
    """Times of the draft model's forward passes and sampling, when it is served by itself."""
    speculation, directory = config.speculation, str(draft_directory(config))
    assert speculation is not None
    tokenizer = resolve_model(config.model or DEMO_MODEL, config.revision, config.download_dir)
    served = replace(
        alone,
        model=directory,
        revision=None,
        tokenizer=str(tokenizer),
        quantization=speculation.quantization,
        hf_overrides=None,
    )
    found = measuring.of(served, alone=True)
    return DraftCalibration(replace(found.model, name=draft_name(speculation)), found.costs)


@dataclass(frozen=True)
class _Measuring:
    """Of the steps of one engine, the ``stage``; seconds: for it, None: as many as it takes."""

    stage: str
    unit: str
    stages: Stages
    progress: Progress
    seconds: float | None

    def of(self, config: EngineConfig, *, alone: bool = False) -> Calibration:
        """alone: see ``WatchedEngine``."""
        engine, capacity = build_engine(config)
        directory = resolve_model(config.model or DEMO_MODEL, config.revision, config.download_dir)
        shape = read_shape(directory, config.hf_overrides).as_quire_keeps()
        name = DEMO_NAME if config.model is None else shape.name
        scenarios = grid(config, capacity)
        if len(scenarios) < _HELD_OUT:
            raise ConfigError("max_model_len or the KV pool is too small to calibrate with")
        watched = WatchedEngine(engine, capacity.limits, self.unit, alone=alone)
        runs = [several for several in self._runs(watched, scenarios) if several]
        fitted, held_out = split([undisturbed(several) for several in runs])
        copied, swapped = (
            block_seconds(watched.executor, kind, capacity) for kind in ("copy", "swap")
        )
        costs = replace(fit(fitted), per_copied_block=copied, per_swapped_block=swapped)
        median_error, total_error = errors(costs, held_out)
        part = "" if len(runs) == len(scenarios) else f", {len(runs)} of {len(scenarios)} scenarios"
        return Calibration(
            model=replace(shape.of_dtype(capacity.dtype), name=name, kv_dtype=_kv_dtype(capacity)),
            machine=f"this machine ({platform.machine()})",
            block_size=config.block_size,
            pool_bytes=capacity.pool_bytes,
            costs=costs,
            median_error=median_error,
            total_error=total_error,
            measured=f"steps of this engine{part}",
            unit=self.unit,
        )

    def _runs(self, watched: WatchedEngine, scenarios: Sequence[Scenario]) -> list[list[Run]]:
        """Each scenario's, in passes: those that are known, and those that there is time for."""
        random, began = Random(0), time.perf_counter()
        serve(watched, Scenario(1, 8), random)  # warm up
        runs: list[list[Run]] = [[] for _ in scenarios]
        order = range(len(scenarios)) if self.seconds is None else coarse_first(len(scenarios))
        for number in range(1, _PASSES + 1):
            start = time.perf_counter()
            for place, i in enumerate(order):
                spent = time.perf_counter() - began
                over = self.seconds is not None and spent >= self.seconds
                if over and (number > 1 or place >= _FEWEST):
                    return runs
                scenario, share = scenarios[i], (number - 1 + place / len(scenarios)) / _PASSES
                share = share if self.seconds is None else max(share, spent / self.seconds)
                run = self.stages.get(self.stage, number, str(scenario))
                text = f"pass {number}, {place + 1} of {len(scenarios)}: {scenario}"
                self.progress(text + (", kept" if run is not None else ""), min(1.0, share))
                if run is None:
                    run = serve(watched, scenario, random)
                    self.stages.keep(self.stage, number, str(scenario), run)
                runs[i].append(run)
            if time.perf_counter() - start > _LONG:
                break
        return runs


def coarse_first(count: int) -> list[int]:
    """The numbers below ``count``, the first of which are far from each other."""
    bits = max(1, (count - 1).bit_length())
    return sorted(range(count), key=lambda number: int(f"{number:0{bits}b}"[::-1], 2))


def _kv_dtype(capacity: Capacity) -> str | None:
    """The type's name in a ``ModelShape``; None: the model's own."""
    name = {"float8_e4m3fn": "fp8"}.get(capacity.kv_dtype, capacity.kv_dtype)
    return None if name == capacity.dtype else name


def undisturbed(runs: Sequence[Run]) -> Run:
    """The steps of runs that took about as long as the quickest; the rest shared the machine."""
    times = [sum(step.seconds for step in run) for run in runs]
    limit = _DISTURBED * min(times)
    return [step for run, taken in zip(runs, times, strict=True) if taken <= limit for step in run]


def split(scenarios: Sequence[Run]) -> tuple[Run, Run]:
    """The steps to fit, and those of every fourth scenario, which are held out."""
    fitted: Run = []
    held_out: Run = []
    for number, steps in enumerate(scenarios, 1):
        (fitted if number % _HELD_OUT else held_out).extend(steps)
    return fitted, held_out


def block_seconds(executor: Executor, kind: str, capacity: Capacity) -> float:
    """Seconds to copy one block within the pool, or one way to the host; 0 without a host pool."""
    kv_group = capacity.kv_groups[0]
    if kind == "copy":
        count = min(_MOVES, kv_group.num_blocks // 2)
        moves = [BlockMove(MoveKind.COPY, i, count + i) for i in range(count)]
    else:
        count = min(_MOVES, kv_group.num_blocks, kv_group.num_host_blocks)
        moves = [BlockMove(MoveKind.SWAP_OUT, i, i) for i in range(count)]
        moves += [BlockMove(MoveKind.SWAP_IN, i, i) for i in range(count)]
    if not moves:
        return 0.0
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        executor.submit(Step(moves)).collect()
        times.append(time.perf_counter() - start)
    return min(times) / len(moves)
