"""Costs from measured steps: least squares without negative costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from quire.engine.work import Work
from quire_lab.calibration.steps import TimedStep
from quire_lab.simulation.calibrated import CONTEXT_KNOTS, KNOTS, CalibratedCosts, line_weights

_ROUNDS = 8
_NEAR = 1.4
_OUTLIER = 0.5  # larger relative errors count in proportion, no longer squared

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]


class Timing(NamedTuple):
    """Steps, one after the other, that took so long together.

    trips: ways from a client and back that are in it.
    """

    works: tuple[Work, ...]
    seconds: float
    trips: int = 0


class Fitted(NamedTuple):
    costs: CalibratedCosts
    trip_seconds: float

    def seconds(self, timing: Timing) -> float:
        return sum(map(self.costs.seconds, timing.works)) + timing.trips * self.trip_seconds


def fit(steps: Sequence[TimedStep]) -> CalibratedCosts:
    """Costs, none negative, whose mean relative error over the steps is least squared.

    A simulation adds steps up, so their means are wanted: what holds a step up now and then when
    calibrating does so when serving. But a step that took several times as long as it should
    must not bend the fit (Huber, 1964).
    """
    seen = sorted({step.work.num_tokens for step in steps})
    inner = (knot for knot in KNOTS[1:] if knot * _NEAR < seen[-1] and _near(knot, seen))
    knots = (KNOTS[0], *inner, max(2, seen[-1]))
    timings = [Timing((step.work,), step.seconds) for step in steps]
    return fit_timings(timings, knots).costs


def _near(knot: int, seen: Sequence[int]) -> bool:
    """Whether there is data for the line's value at a knot."""
    return any(knot / _NEAR <= count <= knot * _NEAR for count in seen)


def fit_timings(timings: Sequence[Timing], knots: tuple[int, ...]) -> Fitted:
    """The same of steps that were timed together. ``knots``: numbers of tokens, at least two."""
    farthest = max(work.decode_context for timing in timings for work in timing.works)
    context_knots = tuple(knot for knot in CONTEXT_KNOTS if knot <= farthest / 2 or not knot)
    rows = [_row(timing, knots, context_knots) for timing in timings]
    solution = _robust(np.array(rows), np.array([timing.seconds for timing in timings]))
    count = len(knots)
    line = np.maximum(np.tri(count) @ solution[:count], 1e-7).tolist()
    trip, per_seq, per_pair, *rest = solution[count:].tolist()
    per_draft, per_draft_pair, per_wake, per_woken_token, copied, swapped, *per_context = rest
    costs = CalibratedCosts(
        knots=knots,
        token_seconds=tuple(line),
        per_seq=per_seq,
        context_knots=context_knots,
        per_context=tuple(per_context),
        per_prefill_pair=per_pair,
        per_draft=per_draft,
        per_draft_pair=per_draft_pair,
        per_wake=per_wake,
        per_woken_token=per_woken_token,
        per_copied_block=copied,
        per_swapped_block=swapped,
    )
    return Fitted(costs, trip)


def _row(timing: Timing, knots: Sequence[int], context_knots: Sequence[int]) -> Vector:
    """The factors of the costs: for the line, differences from knot to knot, none negative, so that
    more tokens never take less.
    """
    row = np.zeros(len(knots) + 9 + len(context_knots))
    for work in timing.works:
        own = work.samples - work.draft_tokens
        drafts = [work.draft_tokens, work.draft_pairs]
        woken = [work.woken, work.woken * work.num_tokens]
        moved = [work.copied_blocks, work.swapped_blocks]
        beyond = [max(0, work.decode_context - knot) for knot in context_knots]
        line = np.cumsum(line_weights(work.num_tokens, knots)[::-1])[::-1]
        row += [*line, 0, own, work.prefill_pairs, *drafts, *woken, *moved, *beyond]
    row[len(knots)] = timing.trips
    return row


def _robust(matrix: Matrix, seconds: Vector) -> Vector:
    """x >= 0 for which seconds / (matrix x) - 1 is least squared, by reweighting."""
    expected, weights = seconds, np.ones(len(seconds))
    for _ in range(_ROUNDS):
        scale = weights / expected
        x = non_negative_least_squares(matrix * scale[:, None], seconds * scale)
        expected = np.maximum(matrix @ x, 1e-2 * seconds)
        off = np.abs(seconds / expected - 1)
        weights = np.sqrt(np.minimum(1.0, _OUTLIER / np.maximum(off, 1e-9)))
    return x


def non_negative_least_squares(matrix: Matrix, target: Vector) -> Vector:
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
