"""Calibrated costs in words."""

from __future__ import annotations

from pathlib import Path

from quire_lab.simulation.calibrated import Calibration

_CLOCKS = {"wall": "clock", "cpu": "processor"}
_UNKNOWN = {
    "swap": "what a swapped block costs (--swap-space is refused with these costs)",
    "drafts": "what drafts cost (speculation is refused with these costs)",
}
_MUCH = 0.1
_REASONS = (
    "Did somebody else use the machine or the server meanwhile, and is --max-num-batched-tokens "
    "the server's? What is simulated with these costs is off by as much."
)


def describe(calibration: Calibration, path: Path) -> str:
    """Costs, errors and what is not known, in a few lines."""
    costs = calibration.costs
    first, last = costs.knots[0], costs.knots[-1]
    beside = f"after a break {_seconds(costs.per_wake)}"
    if calibration.trip_seconds:
        beside = f"for its first token a client waits {_seconds(calibration.trip_seconds)} more"
    lines = [
        f"{calibration.model.name}: a step of {first} token takes "
        f"{_seconds(costs.token_seconds[0])}, of {last:,} tokens "
        f"{_seconds(costs.token_seconds[-1])}; each sequence {_seconds(costs.per_seq)} and "
        f"each 1,000 tokens of context {_seconds(1000 * costs.per_context[0])} more; {beside}.",
        f"From {calibration.measured}, in seconds of the {_CLOCKS[calibration.unit]}. What was "
        f"held out is predicted {calibration.total_error:+.1%} off together, and half of it no "
        f"more than {calibration.median_error:.1%} off.",
    ]
    if calibration.draft is not None:
        name, passes = calibration.draft.model.name, calibration.draft.costs.token_seconds
        lines.append(f"A pass of {name} for one token takes {passes[0] * 1e3:.3g} ms.")
    if max(abs(calibration.total_error), calibration.median_error) > _MUCH:
        lines.append(f"That is much. {_REASONS}")
    if calibration.unknown:
        unknown = "; ".join(_UNKNOWN[name] for name in calibration.unknown)
        lines.append(f"Not known: {unknown}.")
    lines.append(f"Written to {path}; use it with quire simulate --cost-model {path}")
    return "\n".join(lines)


def _seconds(value: float) -> str:
    if value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
