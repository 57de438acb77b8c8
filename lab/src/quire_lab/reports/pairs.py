"""Figures and those they are compared with, as bars in pairs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from quire_lab.reports.style import BLUE, ORANGE, Picture, draw, legend_below

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_LABEL = 42  # characters in a line


class FigurePair(NamedTuple):
    """One figure of ours, and one value, the ends of a range or nothing to compare it with."""

    label: str
    published: tuple[float, ...]
    ours: float


def draw_pairs(
    name: str,
    title: str,
    note: str,
    unit: str,
    pairs: Sequence[FigurePair],
    names: tuple[str, str] = ("published", "Quire, simulated"),
) -> Picture:
    """A pair of bars for each figure; a range is drawn up to its higher end."""

    def paint(figure: Figure) -> None:
        from matplotlib.patches import Patch

        axes = figure.add_subplot()
        for place, pair in enumerate(pairs):
            if pair.published:
                low, high = min(pair.published), max(pair.published)
                axes.barh(place - 0.2, low, 0.36, color=ORANGE)
                axes.barh(
                    place - 0.2, high - low, 0.36, left=low, color="white", edgecolor=ORANGE,
                    hatch="////",
                )  # fmt: skip
                text = _figure(low) if low == high else f"{_figure(low)} to {_figure(high)}"
                axes.annotate(
                    text, (high, place - 0.2), (4, 0), textcoords="offset points", va="center",
                    fontsize=9,
                )  # fmt: skip
            axes.barh(place + 0.2, pair.ours, 0.36, color=BLUE)
            axes.annotate(
                _figure(pair.ours), (pair.ours, place + 0.2), (4, 0), textcoords="offset points",
                va="center", fontsize=9, fontweight="bold",
            )  # fmt: skip
        axes.set_yticks(range(len(pairs)), [textwrap.fill(pair.label, _LABEL) for pair in pairs])
        axes.set_ylim(len(pairs) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(unit)
        axes.margins(x=0.12)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.grid(axis="x")
        axes.set_title(title)
        handles = [
            Patch(facecolor=ORANGE, label=names[0]),
            Patch(facecolor=BLUE, label=names[1]),
        ]
        if any(len(pair.published) > 1 for pair in pairs):
            handles.insert(
                1,
                Patch(
                    facecolor="white", edgecolor=ORANGE, hatch="////", label=f"{names[0]}, range"
                ),
            )
        legend_below(figure, handles, columns=3)

    return draw(name, title, note, paint, 1.5 + 0.52 * len(pairs))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
