"""How loaded each replica of a fleet was over time, and when it failed, began and ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from quire_lab.reports.style import (
    BLACK,
    GREY,
    ORANGE,
    PAGE_WIDTH,
    PALE,
    VERMILLION,
    Picture,
    draw,
    legend_below,
)
from quire_lab.simulation.fleet import FleetResult, ReplicaResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 64
_BINS = 240
_MARKS = (("v", VERMILLION, "failed"), ("^", BLACK, "began to serve"), ("s", ORANGE, "was ended"))


def load_over_time(result: FleetResult) -> Picture:
    """Requests at each replica as colours, a row each; blank while it does not serve."""
    begin, end = 0.0, 1.0
    lives = [life for one in result.replicas for life in one.lives]
    if lives:
        begin, end = min(life.started for life in lives), max(life.ended for life in lives)
    rows = result.replicas[:MOST_ROWS]
    loads = [binned(one, begin, end) for one in rows]
    height = 2.2 + max(1.2, min(8.0, 0.28 * len(rows)))

    def paint(figure: Figure) -> None:
        from matplotlib.patches import Rectangle

        axes = figure.add_subplot()
        image = axes.imshow(
            loads, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0,
            extent=(0.0, (end - begin) or 1.0, len(rows) - 0.5, -0.5),
        )  # fmt: skip
        away = Rectangle((0, 0), 1, 1, transform=axes.transAxes, facecolor=PALE, edgecolor=GREY,
                         hatch="///", linewidth=0, zorder=0)  # fmt: skip
        axes.add_patch(away)  # behind the rows: visible while no replica serves
        image.set_zorder(1)
        axes.set_title("Requests at each replica")
        axes.set_xlabel("seconds since the first arrival")
        axes.set_ylabel("replica")
        axes.set_yticks(range(0, len(rows), max(1, len(rows) // 16)))
        bar = figure.colorbar(image, ax=axes, pad=0.01)
        bar.set_label("running and in line, mean")
        _mark(axes, rows, begin, end)
        if axes.get_legend_handles_labels()[0]:
            legend_below(figure)

    shown = len(result.replicas) - len(rows)
    text = (
        "Each row is a replica: the darker, the more requests were there, running or in line. "
        "Where it did not serve it is hatched."
    )
    if shown:
        text += f" The first {len(rows)} replicas are drawn; {shown:,} more are not."
    return draw("load", "How loaded each replica was", text, paint, height, PAGE_WIDTH)


def binned(one: ReplicaResult, begin: float, end: float) -> list[float]:
    """Mean number of requests in each of the bins; not a number where it did not serve."""
    width = ((end - begin) or 1.0) / _BINS
    sums = [0.0] * _BINS
    points = one.result.series
    step = min((b.start - a.start for a, b in pairwise(points)), default=2.0**-10)
    for point in points:
        there = (point.running + point.waiting) * point.seconds / step
        at, stop = max(point.start, begin), min(point.start + step, end)
        while at < stop:
            place = min(int((at - begin) / width), _BINS - 1)
            after = stop if place == _BINS - 1 else min(stop, begin + (place + 1) * width)
            if after <= at:  # at the edge, by rounding
                after = min(stop, at + width)
            sums[place] += there * (after - at)
            at = after
    serves = [False] * _BINS
    for life in one.lives:
        if life.serves is not None:
            first = max(0, int((life.serves - begin) / width))
            last = min(_BINS, math.ceil((life.ended - begin) / width))
            serves[first:last] = [True] * (last - first)
    return [total / width if there else math.nan for total, there in zip(sums, serves, strict=True)]


def _mark(axes: Axes, rows: Sequence[ReplicaResult], begin: float, end: float) -> None:
    """Failures and scaling; what begins with the run and ends with it is no event."""
    places: dict[str, tuple[list[float], list[int]]] = {name: ([], []) for _, _, name in _MARKS}
    for row, one in enumerate(rows):
        for life in one.lives:
            if life.failed:
                places["failed"][0].append(life.ended - begin)
                places["failed"][1].append(row)
            elif life.ended < end:
                places["was ended"][0].append(life.ended - begin)
                places["was ended"][1].append(row)
            if life.serves is not None and life.serves > begin:
                places["began to serve"][0].append(life.serves - begin)
                places["began to serve"][1].append(row)
    for marker, colour, name in _MARKS:
        xs, ys = places[name]
        if xs:
            axes.scatter(
                xs, ys, marker=marker, color=colour, edgecolors="white", s=70, zorder=3,
                clip_on=False, label=name,
            )  # fmt: skip
