"""How long this machine's steps take: measured on the real engine, fitted, and checked.

A grid of scenarios runs through ``Engine.step``, so that scheduling, sampling and detokenising are
in the time. Every fourth scenario is held out of the fit, and tells how far off it is.
"""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean, median

import numpy as np

from quire.build import DEMO_MODEL, DEMO_NAME, Capacity, build_engine
from quire.config import EngineConfig
from quire.engine import Engine
from quire.errors import ConfigError
from quire.memory import BlockMove, MoveKind
from quire.model import resolve_model
from quire.scheduling import Executor, SamplingParams, Step, StepResult
from quire.simulation import Work, read_shape, work_of
from quire.simulation.calibrated import KNOTS, CalibratedCosts, Calibration, line_weights

_OUTPUT = 6  # tokens of each request
_REPEATS = 3
_HELD_OUT = 4
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
_LENGTHS = (8, 24, 64, 160, 400, 1000, 2000)
_MOVES = 32

_REWEIGHTINGS = 8
_SMALL_ERROR = 0.02  # below it, an error is as good as none

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]
Measured = dict[Work, float]
"""Seconds of a step with this work, the median of some."""


def calibrate(config: EngineConfig, progress: Callable[[str], None]) -> Calibration:
    """Measure and fit. ``progress`` is told what is being measured.

    Raises:
        ConfigError: the pool or the length is too small to see anything.
    """
    # Steps one by one: what they cost cannot be seen where they overlap with their planning.
    engine, capacity = build_engine(replace(config, async_scheduling=False))
    shape = read_shape(resolve_model(config.model or DEMO_MODEL, config.revision) / "config.json")
    name = DEMO_NAME if config.model is None else shape.name
    grid = list(_grid(config, capacity))
    if len(grid) < _HELD_OUT:
        raise ConfigError("max_model_len or the KV pool is too small to calibrate with")
    bench = _Bench(engine)
    bench.run([24] * 4)  # warm up
    measured = []
    for number, lengths in enumerate(grid, 1):
        progress(f"{number} of {len(grid)}: {len(lengths)} requests of about {lengths[0]} tokens")
        measured.append(bench.measure(lengths))
    fitted = merge(one for i, one in enumerate(measured) if i % _HELD_OUT)
    held_out = merge(measured[::_HELD_OUT])
    copied, swapped = (bench.block_seconds(kind, capacity) for kind in ("copy", "swap"))
    costs = fit(fitted, copied, swapped)
    errors = [abs(costs.seconds(work) - seconds) / seconds for work, seconds in held_out.items()]
    return Calibration(
        model=replace(shape, name=name, dtype=capacity.dtype),
        machine=f"this machine ({platform.machine()})",
        block_size=config.block_size,
        pool_bytes=capacity.pool_bytes,
        costs=costs,
        median_error=median(errors),
        mean_error=fmean(errors),
    )


def fit(measured: Measured, per_copied_block: float, per_swapped_block: float) -> CalibratedCosts:
    """Costs, none negative, with the least sum of relative errors.

    Not of their squares: another process that takes the processor makes some steps ten times
    longer, and says nothing about the others.
    """
    most = max(work.num_tokens for work in measured)
    knots = (*(knot for knot in KNOTS if knot < most), max(2, most))
    rows = [
        [*line_weights(work.num_tokens, knots), work.samples, work.decode_context,
         work.prefill_pairs]
        for work in measured
    ]  # fmt: skip
    seconds = np.array(list(measured.values()))
    matrix = np.array(rows)
    # In steps from knot to knot, none negative, so that more tokens never take less.
    count = len(knots)
    matrix[:, :count] = matrix[:, :count] @ np.tri(count)
    solution = _robust(matrix / seconds[:, None])
    line = np.maximum(np.tri(count) @ solution[:count], 1e-7).tolist()
    per_seq, per_context, per_pair = solution[count:].tolist()
    return CalibratedCosts(
        knots, tuple(line), per_seq, per_context, per_pair, per_copied_block, per_swapped_block
    )


def _robust(matrix: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Vector:
    """x >= 0 with the least sum of |matrix x - 1|, by iteratively reweighted least squares."""
    weights = np.ones(len(matrix))
    for _ in range(_REWEIGHTINGS):
        x = non_negative_least_squares(matrix * weights[:, None], weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(matrix @ x - 1), _SMALL_ERROR))
    return x


def non_negative_least_squares(
    matrix: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    target: Vector,
) -> Vector:
    """x >= 0 that minimises |matrix x - target| (Lawson and Hanson, 1974, chapter 23).

    matrix [rows, columns], target [rows].
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0.0] = 1.0
    unit = matrix / scale
    x = np.zeros(unit.shape[1])
    free = np.zeros(unit.shape[1], dtype=bool)  # columns that are not held at 0
    for _ in range(3 * unit.shape[1]):
        slope = unit.T @ (target - unit @ x)
        slope[free] = -np.inf
        if slope.max() <= 1e-10 * len(target):
            break
        free[slope.argmax()] = True
        while True:
            best = np.zeros_like(x)
            best[free] = np.linalg.lstsq(unit[:, free], target, rcond=None)[0]
            low = free & (best <= 0.0)
            if not low.any():
                break
            # As far towards the best as nothing becomes negative; what becomes 0 stays there.
            x += (x[low] / (x[low] - best[low] + 1e-300)).min() * (best - x)
            free &= x > 1e-12
            x[~free] = 0.0
        x = best
    solution: Vector = x / scale
    return solution


def merge(parts: Sequence[Measured] | Iterator[Measured]) -> Measured:
    """The mean where several have measured the same work."""
    seen: dict[Work, list[float]] = defaultdict(list)
    for part in parts:
        for work, seconds in part.items():
            seen[work].append(seconds)
    return {work: fmean(seconds) for work, seconds in seen.items()}


def _grid(config: EngineConfig, capacity: Capacity) -> Iterator[list[int]]:
    """Lengths of the prompts that are served together, as far as pool and limits go."""
    tokens = min(lane.num_blocks for lane in capacity.lanes) * config.block_size
    longest = tokens if capacity.max_model_len is None else capacity.max_model_len
    for batch in _BATCHES:
        for length in _LENGTHS:
            if length + _OUTPUT > longest or batch > config.max_num_seqs:
                continue
            if batch * (length + _OUTPUT + config.block_size) > tokens or batch * length > 20_000:
                continue
            # Different lengths, so that prefills end at different steps, among others' decoding.
            yield [max(1, length - (i * 7) % max(1, length // 4)) for i in range(batch)]


class _Bench:
    """Runs scenarios through an engine and notes what each step had to do and how long it took."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watch = _Watch(engine.executor)
        engine.executor = self._watch
        self._random = Random(0)

    def measure(self, lengths: Sequence[int]) -> Measured:
        seen: dict[Work, list[float]] = defaultdict(list)
        for _ in range(_REPEATS):
            for work, seconds in self.run(lengths):
                seen[work].append(seconds)
        return {work: median(seconds) for work, seconds in seen.items()}

    def run(self, lengths: Sequence[int]) -> list[tuple[Work, float]]:
        """Serve prompts of random tokens; every step's work and seconds."""
        engine, steps = self._engine, []
        params = SamplingParams(max_tokens=_OUTPUT, ignore_eos=True, temperature=1.0)
        for number, length in enumerate(lengths):
            vocabulary = engine.intake.vocab_size
            prompt = [self._random.randrange(vocabulary) for _ in range(length)]
            engine.add_request(f"{number}", prompt, params)
        while engine.has_work:
            start = time.perf_counter()
            engine.step()
            seconds = time.perf_counter() - start
            steps.append((work_of(self._watch.step), seconds))
        return steps

    def block_seconds(self, kind: str, capacity: Capacity) -> float:
        """Of one block moved within the pool, or one way to the host; 0 where there is none."""
        lane = capacity.lanes[0]
        if kind == "copy":
            count = min(_MOVES, lane.num_blocks // 2)
            moves = [BlockMove(MoveKind.COPY, i, count + i) for i in range(count)]
        else:
            count = min(_MOVES, lane.num_blocks, lane.num_host_blocks)
            moves = [BlockMove(MoveKind.SWAP_OUT, i, i) for i in range(count)]
            moves += [BlockMove(MoveKind.SWAP_IN, i, i) for i in range(count)]
        if not moves:
            return 0.0
        times = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            self._watch.inner.execute(Step(moves, [], []))
            times.append(time.perf_counter() - start)
        return min(times) / len(moves)


class _Watch:
    """An executor that remembers its last step."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.step = Step([], [], [])

    def execute(self, step: Step) -> StepResult:
        self.step = step
        return self.inner.execute(step)


def describe(calibration: Calibration, path: Path) -> str:
    """What was found, in three lines."""
    costs = calibration.costs
    first, last = costs.knots[0], costs.knots[-1]
    return (
        f"{calibration.model.name}: a step of {first} token takes "
        f"{costs.token_seconds[0] * 1e3:.3g} ms, of {last:,} tokens "
        f"{costs.token_seconds[-1] * 1e3:.3g} ms; each 1,000 tokens of context "
        f"{costs.per_decode_context * 1e6:.3g} ms more.\n"
        f"Half of the steps that were held out are predicted to {calibration.median_error:.1%}; "
        f"the mean error is {calibration.mean_error:.1%}, steps that other processes held up "
        "included.\n"
        f"Written to {path}; use it with quire simulate --cost-model {path}"
    )
