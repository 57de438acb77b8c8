"""Lines against a figure that was varied: latency against request rate, and the like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from quire_lab.reports.style import (
    BLACK,
    LINE_STYLES,
    PAGE_WIDTH,
    PURPLE,
    Picture,
    draw,
    legend_below,
)
from quire_lab.simulation import SimulationResult
from quire_lab.simulation.fleet import FleetResult
from quire_lab.simulation.latencies import Goals

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HALF = 6.0  # inches: two pictures beside each other
_TALL = 3.0  # times the goal, above which lines leave the picture
_FAR = 1.5  # times what was tried, from where on a limit is named and not drawn
_LIMITS = ((BLACK, ":"), (PURPLE, "-."))
"""Colour and dashes of vertical lines."""


class Curve(NamedTuple):
    """One line: (x, y) in order of x."""

    label: str
    points: tuple[tuple[float, float], ...]


class Panel(NamedTuple):
    """One pair of axes with its lines."""

    title: str
    x: str  # what is varied, with its unit
    y: str  # what comes of it, with its unit
    curves: tuple[Curve, ...]
    top: float | None = None  # the highest y that is drawn; lines leave the picture above it
    level: tuple[float, str] | None = None  # a horizontal line, and what it stands for
    doubling: bool = False  # x is drawn in powers of two
    limits: tuple[tuple[float, str], ...] = ()  # vertical lines, and what they stand for


def draw_curves(
    name: str,
    title: str,
    note: str,
    panels: Sequence[Panel],
    columns: int = 3,
    known: Sequence[str] = (),
    width: float = PAGE_WIDTH,
) -> Picture:
    """Panels side by side, each line of one label in the same colour, marker and dashes.

    known: labels that look alike in every picture, whichever of them it has.
    """
    styles = line_styles(panels, known)
    most = 6 if width == PAGE_WIDTH else 2  # names in a row of the legend
    across = min(columns, len(panels))
    down = -(-len(panels) // across)

    def paint(figure: Figure) -> None:
        grid = list(figure.subplots(down, across, squeeze=False).flat)
        for axes, panel in zip(grid, panels, strict=False):
            _paint_panel(axes, panel, styles)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        handles = {}
        for axes in figure.axes:
            handles.update({h.get_label(): h for h in axes.get_legend_handles_labels()[0]})
        legend_below(figure, list(handles.values()), columns=min(most, len(handles)))

    return draw(name, title, note, paint, 0.6 + 3.6 * down, width)


def line_styles(
    panels: Sequence[Panel], known: Sequence[str] = ()
) -> dict[str, tuple[str, str, str]]:
    """Colour, marker and dashes of each label, known ones first."""
    drawn = (curve.label for panel in panels for curve in panel.curves)
    labels = dict.fromkeys([*known, *drawn])
    return {label: LINE_STYLES[i % len(LINE_STYLES)] for i, label in enumerate(labels)}


def _paint_panel(axes: Axes, panel: Panel, styles: dict[str, tuple[str, str, str]]) -> None:
    for curve in panel.curves:
        colour, marker, dashes = styles[curve.label]
        xs, ys = [x for x, _ in curve.points], [y for _, y in curve.points]
        axes.plot(
            xs, ys, color=colour, marker=marker, linestyle=dashes, markersize=5, label=curve.label
        )
    axes.set_title(panel.title, fontsize=11.5)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.grid()
    if panel.doubling:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xticks(sorted({x for curve in panel.curves for x, _ in curve.points}))
        axes.minorticks_off()
    axes.set_ylim(0, panel.top)
    if panel.level is not None:
        height, meaning = panel.level
        axes.axhline(height, color="#555555", linewidth=1, label=meaning)
    furthest = max((x for curve in panel.curves for x, _ in curve.points), default=math.inf)
    for (place, meaning), (colour, dashes) in zip(panel.limits, _LIMITS, strict=False):
        if place <= _FAR * furthest:
            axes.axvline(place, color=colour, linestyle=dashes, linewidth=1.5, label=meaning)
        else:  # it would leave the lines a corner of the picture
            named = f"{meaning} at {place:.3g}, far right"
            axes.plot([], [], color=colour, linestyle=dashes, linewidth=1.5, label=named)


class LoadCurveLine(NamedTuple):
    """part: of the distributions, "p50" or "p90". points: a load, and its result."""

    label: str
    part: str
    points: Sequence[tuple[float, SimulationResult | FleetResult]]


def latencies_against(
    load: str,
    lines: Sequence[LoadCurveLine],
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
