"""The style of charts: colours that everyone can tell apart, dark text on white, laptop width."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
"""The palette of Okabe and Ito (Color Universal Design, 2008)."""

PALE, GREY, INK = "#EDEDED", "#8A8A8A", "#1A1A1A"

LINE_STYLES = (
    (BLUE, "o", "-"),
    (VERMILLION, "s", "--"),
    (GREEN, "^", "-."),
    (ORANGE, "D", ":"),
    (PURPLE, "v", "-"),
    (SKY, "P", "--"),
    (BLACK, "X", "-."),
)
"""Colour, marker and dashes of a chart's lines, so that none depends on its colour alone."""

PAGE_WIDTH = 11.0  # inches
_DOTS = 120  # per inch, of PNG files: 1,320 pixels wide

_LOOK: Any = {
    "font.family": "DejaVu Sans",  # it comes with matplotlib
    "font.size": 11,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "path",  # the same on every machine
    "svg.hashsalt": "quire",  # the same bytes in every run
}


@dataclass(frozen=True)
class Picture:
    """A chart, drawn. ``note`` says in words how to read it."""

    name: str  # of its file, without suffix
    title: str
    note: str
    svg: bytes
    png: bytes


def require_matplotlib() -> None:
    """ConfigError if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            'reports are drawn by matplotlib, which is missing: pip install "quire-llm[reports]"'
        )


def draw(
    name: str,
    title: str,
    note: str,
    paint: Callable[[Figure], None],
    height: float = 4.2,
    width: float = PAGE_WIDTH,
) -> Picture:
    """A picture of ``width`` and ``height`` in inches, painted by ``paint``.

    Raises:
        ConfigError: matplotlib is missing.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_LOOK):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        paint(figure)
        svg, png = io.BytesIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": "quire"})
        figure.savefig(png, format="png", dpi=_DOTS, metadata={"Software": "quire"})
    return Picture(name, title, note, svg.getvalue(), png.getvalue())


def legend_below(figure: Figure, handles: Any = None, columns: int = 6) -> None:
    """One legend for all axes, under them, where it covers nothing."""
    if handles is None:
        handles = [handle for axes in figure.axes for handle in axes.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
