"""TTFT and TPOT against the load, with the goals drawn in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.core.metrics import Goals
from quire_lab.reports.curves import Curve, Panel, draw_curves
from quire_lab.reports.style import Picture
from quire_lab.simulation import SimulationResult
from quire_lab.simulation.fleet import FleetResult

_HALF = 6.0  # inches: two pictures beside each other
_TALL = 3.0  # times the goal, above which lines leave the picture


class Line(NamedTuple):
    """part: of the distributions, "p50" or "p90". points: a load, and what comes of it."""

    label: str
    part: str
    points: Sequence[tuple[float, SimulationResult | FleetResult]]


def latencies_against(
    load: str,
    lines: Sequence[Line],
    goals: Goals,
    ends: str = "",
    limits: Sequence[tuple[float, str]] = (),
) -> list[Picture]:
    """Two pictures. load: what is varied, with its unit. limits: loads, and what they stand for;
    ends: the same in words."""
    pictures = []
    for key, what in (("ttft", "time to first token"), ("tpot", "time per token after it")):
        curves = tuple(
            Curve(line.label, tuple((x, getattr(getattr(found, key), line.part))
                                    for x, found in line.points))
            for line in lines
        )  # fmt: skip
        goal = getattr(goals, key)
        top = None
        if goal is not None:
            highest = max(y for one in curves for _, y in one.points)
            top = max(1.25 * goal, min(_TALL * goal, 1.05 * highest))
        panel = Panel(
            what.capitalize(), load, "seconds", curves, top,
            None if goal is None else (goal, f"goal: {goal:g} s"), limits=tuple(limits),
        )  # fmt: skip
        note = f"{what.capitalize()} at smaller and at larger loads.{ends}"
        pictures.append(draw_curves(key, what, note, [panel], 1, width=_HALF))
    return pictures
