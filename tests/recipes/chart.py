"""What a simulation decided, as bars."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from recipes.recipe import Recipe

_REPORT = "lab/src/quire_lab/reports/simulation_report.py"
_CHART = '''"""How often a scheduler decided what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire_lab.reports.style import BLUE, Picture, draw
from quire_lab.simulation.result import SimulationResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def counted(result: SimulationResult) -> list[tuple[str, int]]:
    """What was decided, the most frequent first."""
    return sorted(result.num_decisions.items(), key=lambda item: -item[1])


def draw_decisions(result: SimulationResult) -> Picture:
    """A bar for each kind."""

    def paint(figure: Figure) -> None:
        names, counts = zip(*counted(result), strict=True)
        axes = figure.subplots()
        axes.barh(names, counts, color=BLUE)
        axes.set_xlabel("decisions")

    return draw("decisions", "What was decided", "Each kind of decision, counted.", paint)
'''

RECIPE = Recipe(
    "A chart",
    [
        (
            _REPORT,
            "from quire_lab.reports.page import Page, moment_page\n",
            "from quire_lab.reports.decisions import draw_decisions\n"
            "from quire_lab.reports.page import Page, moment_page\n",
        ),
        (
            _REPORT,
            '    page.section("Decisions, and why")\n',
            '    page.section("Decisions, and why")\n    page.picture(draw_decisions(result))\n',
        ),
    ],
    {"lab/src/quire_lab/reports/decisions.py": _CHART},
)


def check() -> None:
    """It is in the report of a simulation."""
    pytest.importorskip("matplotlib")
    from quire.tools.cli import main
    from support.page_reader import PageReader

    load = ["--input", "20-60", "--output", "10-40", "--requests", "20", "--rate", "400"]
    machine = ["opt-125m", "--machine", "l4", "--kv-cache-memory-bytes", "16MiB"]
    with tempfile.TemporaryDirectory() as folder:
        assert main(["simulate", *machine, *load, "--report", folder]) == 0
        assert "decisions" in PageReader(Path(folder, "report.html")).images
        assert Path(folder, "decisions.png").exists()
