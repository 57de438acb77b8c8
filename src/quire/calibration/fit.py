"""Costs from measured steps: least squares without negative costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.calibration.watch import TimedStep
from quire.simulation.calibrated import CONTEXT_KNOTS, KNOTS, CalibratedCosts, line_weights

_ROUNDS = 8
_OUTLIER = 0.5  # a relative error beyond this counts in proportion, no longer squared

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]


def fit(
    steps: Sequence[TimedStep], per_copied_block: float, per_swapped_block: float
) -> CalibratedCosts:
    """Costs, none negative, whose mean relative error over the steps is least squared.

    A simulation adds steps up, so their means are wanted: what holds a step up now and then when
    calibrating does so when serving. But a step that took several times as long as it should
    must not bend the fit (Huber, 1964).
    """
    most = max(step.work.num_tokens for step in steps)
    farthest = max(step.work.decode_context for step in steps)
    knots = (*(knot for knot in KNOTS if knot < most), max(2, most))
    context_knots = tuple(knot for knot in CONTEXT_KNOTS if knot <= farthest / 2 or not knot)
    lines, others = [], []
    for work, _ in steps:
        lines.append(line_weights(work.num_tokens, knots))
        beyond = [max(0, work.decode_context - knot) for knot in context_knots]
        woken = [work.woken, work.woken * work.num_tokens]
        drafts = [work.draft_tokens, work.draft_pairs]
        own = work.samples - work.draft_tokens
        others.append([own, work.prefill_pairs, *drafts, *woken, *beyond])
    # In steps from knot to knot, none negative, so that more tokens never take less.
    count = len(knots)
    matrix = np.hstack([np.array(lines) @ np.tri(count), np.array(others, dtype=float)])
    solution = _robust(matrix, np.array([step.seconds for step in steps]))
    line = np.maximum(np.tri(count) @ solution[:count], 1e-7).tolist()
    per_seq, per_pair, *rest = solution[count:].tolist()
    per_draft, per_draft_pair, per_wake, per_woken_token, *per_context = rest
    return CalibratedCosts(
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
        per_copied_block=per_copied_block,
        per_swapped_block=per_swapped_block,
    )


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
