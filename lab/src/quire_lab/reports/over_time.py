"""Charts over time: what the KV memory was doing, and how many ran and waited."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from quire.core.memory import Usage
from quire_lab.reports.style import (
    BLUE,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILLION,
    Picture,
    draw,
    legend_below,
)
from quire_lab.simulation.result import SimulationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GIB = 2**30

PARTS = (
    ("used", "used: keys and values of tokens", BLUE),
    ("reserved", "reserved: promised, not yet written", ORANGE),
    ("internal", "internal fragmentation: promised to nobody", VERMILLION),
    ("external", "external fragmentation: pieces too small to give out", PURPLE),
    ("cached", "cached: free, but can still be found", SKY),
    ("free", "free", PALE),
)
"""The parts of memory.Usage, what they mean, and their colours."""

assert tuple(name for name, _, _ in PARTS) == Usage._fields


def memory_over_time(result: SimulationResult, bytes_per_token: int | None) -> Picture:
    """Slots of the pool by what they did, stacked up to its capacity."""
    edges, gaps = _edges(result)
    capacity = result.num_blocks * result.block_size

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        stack = [_steps([getattr(p, name) for p in result.series], gaps) for name, _, _ in PARTS]
        axes.stackplot(
            edges, stack, labels=[label for _, label, _ in PARTS],
            colors=[colour for _, _, colour in PARTS], linewidth=0,
        )  # fmt: skip
        axes.set_title("What the KV memory was doing")
        axes.set_ylabel("KV slots (tokens)")
        axes.set_ylim(0, capacity or 1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        share = axes.secondary_yaxis(
            "right", functions=(_scaled_by(100 / capacity), _scaled_by(capacity / 100))
        )
        share.set_ylabel("share of the pool (%)")
        _time_axis(axes, edges)
        legend_below(figure, columns=2)

    size = "" if bytes_per_token is None else f" ({capacity * bytes_per_token / GIB:,.1f} GiB)"
    return draw(
        "memory",
        "KV memory over time",
        f"The pool has {capacity:,} slots{size}, one for each token's keys and values. Only blue "
        "is at work; orange, vermillion and purple are what the way of allocating costs. Each "
        f"point is a mean over {_width(result):g} s of steps; where nothing ran, nothing is drawn.",
        paint,
        5.0,
    )


def batch_over_time(result: SimulationResult) -> Picture:
    """Running sequences, and waiting requests."""
    edges, gaps = _edges(result)

    def paint(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        running = _steps([point.running for point in result.series], gaps)
        most = _steps([float(point.most_running) for point in result.series], gaps)
        waiting = _steps([point.waiting for point in result.series], gaps)
        above.fill_between(edges, running, color=SKY, alpha=0.5, linewidth=0)
        above.plot(edges, running, color=BLUE, label="mean")
        above.plot(edges, most, color=VERMILLION, linestyle=":", label="most in one step")
        above.set_title("Batch size")
        above.set_ylabel("sequences in a step")
        above.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
        below.fill_between(edges, waiting, color=ORANGE, linewidth=0)
        below.set_title("Line")
        below.set_ylabel("requests waiting")
        for axes in (above, below):
            axes.set_ylim(bottom=0)
            axes.margins(y=0.15)
            axes.grid(axis="y")
        if not any(point.waiting for point in result.series):
            below.set_ylim(0, 1)
            below.text(0.5, 0.5, "nobody ever waited for a later step", color=GREY, ha="center",
                       transform=below.transAxes)  # fmt: skip
        _time_axis(below, edges)

    return draw(
        "batch",
        "Batch size over time",
        f"{result.mean_running:.1f} sequences ran together on average over all steps' time, "
        f"{result.most_running} at most. A growing line means more arrives than is served.",
        paint,
        5.0,
    )


def _width(result: SimulationResult) -> float:
    """Seconds between the series' points; they are multiples of it."""
    starts = [point.start for point in result.series]
    return min((b - a for a, b in pairwise(starts)), default=2.0**-10)


def _edges(result: SimulationResult) -> tuple[list[float], list[bool]]:
    """Two times for each point, its interval's ends; and after which points something is missing.

    A missing interval is drawn as zero, between the end of one point and the start of the next.
    """
    width = _width(result)
    edges: list[float] = []
    gaps: list[bool] = []
    for place, point in enumerate(result.series):
        after = result.series[place + 1].start if place + 1 < len(result.series) else None
        gap = after is not None and after > point.start + 1.5 * width
        edges += [point.start, point.start + width]
        if gap:
            assert after is not None
            edges += [point.start + width, after]
        gaps.append(gap)
    return edges, gaps


def _steps(values: list[float], gaps: list[bool]) -> list[float]:
    flat: list[float] = []
    for value, gap in zip(values, gaps, strict=True):
        flat += [value, value, 0.0, 0.0] if gap else [value, value]
    return flat


def _time_axis(axes: Axes, edges: list[float]) -> None:
    last = edges[-1] if edges else 1.0
    unit, seconds = ("minutes", 60.0) if last > 600 else ("seconds", 1.0)
    axes.set_xlim(edges[0] if edges else 0.0, last)
    axes.xaxis.set_major_formatter(_scaled(seconds))
    if seconds > 1:
        from matplotlib.ticker import MultipleLocator

        step = next(n for n in (2, 5, 10, 20, 60, 120, 1440, 10**9) if last / 60 / n <= 12)
        axes.xaxis.set_major_locator(MultipleLocator(60 * step))
    axes.set_xlabel(f"time ({unit} since the first arrival)")


def _scaled_by(factor: float) -> Any:
    return lambda value: value * factor


def _scaled(seconds: float) -> Any:
    return lambda value, _: f"{value / seconds:g}"
