"""What was found of costs, in words."""

from __future__ import annotations

from pathlib import Path

from quire.simulation.calibrated import Calibration

_CLOCKS = {"wall": "clock", "cpu": "processor"}
_UNKNOWN = {
    "swap": "what a swapped block costs (--swap-space is refused with these costs)",
    "drafts": "what drafts cost (speculation is refused with these costs)",
}


def describe(calibration: Calibration, path: Path) -> str:
    """Costs, errors and what is not known, in a few lines."""
    costs = calibration.costs
    first, last = costs.knots[0], costs.knots[-1]
    beside = f"after a break {costs.per_wake * 1e3:.3g} ms"
    if calibration.trip_seconds:
        beside = f"a client waits {calibration.trip_seconds * 1e3:.3g} ms beside"
    lines = [
        f"{calibration.model.name}: a step of {first} token takes "
        f"{costs.token_seconds[0] * 1e3:.3g} ms, of {last:,} tokens "
        f"{costs.token_seconds[-1] * 1e3:.3g} ms; each sequence {costs.per_seq * 1e6:.3g} µs and "
        f"each 1,000 tokens of context {costs.per_context[0] * 1e9:.3g} µs more; {beside}.",
        f"From {calibration.measured}, in seconds of the {_CLOCKS[calibration.unit]}. What was "
        f"held out: together predicted to {calibration.total_error:+.1%}, half of it to "
        f"{calibration.median_error:.1%}.",
    ]
    if calibration.unknown:
        unknown = "; ".join(_UNKNOWN[name] for name in calibration.unknown)
        lines.append(f"Not known: {unknown}.")
    lines.append(f"Written to {path}; use it with quire simulate --cost-model {path}")
    return "\n".join(lines)
