"""The form of an experiment: figures beside the published ones, curves, and their meaning."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from quire_lab.reports.curves import Panel

TOLERANCE = 0.1
"""A figure this near to the published one counts as the same. A range is what it says."""


@dataclass(frozen=True)
class Finding:
    """One figure of ours beside the published one.

    published: one figure, the ends of a range, or nothing if none was published.
    why: why ours differs, in plain words; may be empty.
    """

    what: str
    published: tuple[float, ...]
    ours: float
    unit: str
    why: str = ""

    @property
    def agrees(self) -> bool | None:
        """Whether ours is in the range, or within TOLERANCE of the figure, that was published; None
        if nothing was."""
        if not self.published:
            return None
        low, high = min(self.published), max(self.published)
        if low == high:
            return abs(self.ours - low) <= TOLERANCE * low
        return low <= self.ours <= high


class Table(NamedTuple):
    """Something that is shown row by row, beside the figures."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper or of an article, done again.

    key: short name, for files and anchors.
    asked: its authors' question and method.
    done: what was simulated here.
    charted: units whose figures are drawn in pairs.
    learned: the result, and why it differs from the published one.
    """

    key: str
    title: str
    asked: str
    done: str
    findings: tuple[Finding, ...]
    learned: str
    panels: tuple[Panel, ...] = ()
    panels_note: str = ""
    charted: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()

    def values(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "key": self.key,
            "title": self.title,
            "findings": [{**asdict(one), "agrees": one.agrees} for one in self.findings],
            "tables": [table._asdict() for table in self.tables],
            "panels": [
                {
                    "title": panel.title, "x": panel.x, "y": panel.y,
                    "curves": {curve.label: list(curve.points) for curve in panel.curves},
                }
                for panel in self.panels
            ],
        }  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """How much is simulated.

    share: of the simulated time of the full experiment.
    fewest: requests of a run, however low its rate.
    refinements: halvings of the interval in which a sustained rate is searched.
    models: how many of the models of an experiment that has several.
    furthest: multiple of the first rate up to which a sustained rate is searched.
    """

    share: float = 1.0
    fewest: int = 100
    refinements: int = 3
    models: int = 3
    furthest: float = math.inf
    seed: int = 0

    def count(self, rate: float, seconds: float) -> int:
        """Requests of a run that takes ``seconds`` in full."""
        return max(self.fewest, round(rate * seconds * self.share))


FULL = Scale()
QUICK = Scale(share=0.02, fewest=20, refinements=0, models=1, furthest=4)
