"""Costs from step times that others have measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from quire.core.errors import ConfigError
from quire.models.shape import ModelShape
from quire_lab.calibration.fit import fit
from quire_lab.calibration.steps import TimedStep, check_unit, read_steps
from quire_lab.simulation.calibrated import CalibratedCosts, Calibration

_HELD_OUT = 4
_FEWEST = 2 * _HELD_OUT


def import_steps(
    path: Path, model: ModelShape, block_size: int, pool_bytes: int, unit: str = "wall"
) -> Calibration:
    """Costs of the steps in a CSV (``read_steps``). Every fourth shows the error, except the
    largest, after which nothing is known.

    Raises:
        ConfigError: the file is not such a CSV, or holds too few steps.
    """
    recorded = read_steps(path)
    check_unit(recorded, unit, path)
    if len(recorded) < _FEWEST:
        raise ConfigError(f"{path} holds {len(recorded)} steps; {_FEWEST} are the least")
    steps = [step.timed(unit) for step in recorded]
    largest = max(range(len(steps)), key=lambda i: steps[i].work.num_tokens)
    held_out = set(range(_HELD_OUT - 1, len(steps), _HELD_OUT)) - {largest}
    costs = fit([step for i, step in enumerate(steps) if i not in held_out])
    median_error, total_error = errors(costs, [steps[i] for i in sorted(held_out)])
    return Calibration(
        model=model,
        machine=f"the machine of {path.name}",
        block_size=block_size,
        pool_bytes=pool_bytes,
        costs=costs,
        median_error=median_error,
        total_error=total_error,
        measured=f"{len(steps):,} steps of {path.name}",
        unit=unit,
        unknown=_unknown(steps),
    )


def errors(costs: CalibratedCosts, held_out: Sequence[TimedStep]) -> tuple[float, float]:
    """The median of single steps' relative errors, and that of the time they took together."""
    single = [abs(costs.seconds(work) / seconds - 1) for work, seconds in held_out]
    predicted = sum(costs.seconds(work) for work, _ in held_out)
    return median(single), predicted / sum(seconds for _, seconds in held_out) - 1


def _unknown(steps: Sequence[TimedStep]) -> tuple[str, ...]:
    """The work that costs nothing because no step has it."""
    has = {
        "swap": any(step.work.swapped_blocks for step in steps),
        "drafts": any(step.work.draft_tokens for step in steps),
    }
    return tuple(name for name, there in has.items() if not there)
