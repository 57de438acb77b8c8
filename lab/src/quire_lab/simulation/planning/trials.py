"""One load without drafts and with them, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from quire_lab.simulation.result import SimulationResult

WORTH = 1.02
"""Times as much, below which nothing is gained: a simulation is no better than that."""

_AS_GOOD = 0.99


class Trial(NamedTuple):
    """The load under one setting.

    drafts: of a sequence in each step; 0: none; None: as the engine chooses.
    goodput: requests per second; None where there are no goals.
    """

    drafts: int | None
    result: SimulationResult
    goodput: float | None


@dataclass(frozen=True)
class DraftTrials:
    """The load without drafts, with fixed numbers of them, and with as many as the engine chooses.

    measure: what counts: goodput if there are goals, time per token if requests have times of their
        own, else tokens per second.
    """

    load: str
    measure: str  # "goodput", "tpot" or "output_rate"
    without: Trial
    fixed: tuple[Trial, ...]
    chosen: Trial

    @property
    def best(self) -> Trial:
        """The fewest drafts per step that are as good as any number."""
        most = max(map(self.gain, self.fixed))
        return next(one for one in self.fixed if self.gain(one) >= _AS_GOOD * most)

    def gain(self, trial: Trial) -> float:
        """Times as good as without drafts."""
        if self.measure == "tpot":
            mean = trial.result.tpot.mean
            return self.without.result.tpot.mean / mean if mean else 1.0
        ours, theirs = (self._value(one) for one in (trial, self.without))
        return ours / theirs if theirs else 1.0

    def _value(self, trial: Trial) -> float:
        return trial.goodput or 0.0 if self.measure == "goodput" else trial.result.output_rate
