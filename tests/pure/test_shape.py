"""The code keeps the measures in docs/architecture-shape.md, and they keep up with the code."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from scripts import shape

if not shape.PAGE.exists():
    pytest.skip("Quire runs without its sources", allow_module_level=True)

PAGE = shape.PAGE.read_text(encoding="utf-8")
ROWS = shape.table(PAGE)


@pytest.fixture(scope="module")
def figures() -> Mapping[str, float]:
    return shape.measured(ROWS)


def test_every_measure_has_a_row() -> None:
    measures = {*shape.COUNTS, *shape.GREATEST, *shape.RUNNING}
    assert {row.split(": ")[0] for row in ROWS} == measures
    assert measures <= ROWS.keys()


def test_no_more_is_measured_than_may_be(figures: Mapping[str, float]) -> None:
    over = {what: found for what, found in figures.items() if found > ROWS[what].at_most}
    assert not over, "python scripts/shape.py tells what counts"


def test_ceilings_only_go_down(figures: Mapping[str, float]) -> None:
    assert shape.lowered(PAGE, figures) == PAGE, "python scripts/shape.py --lower"


def test_lower_ceilings_are_written_down() -> None:
    page = """
| lines of a function | 60 | 60 |
| lines of Python in `quire` | 66,400 | 55,000 |
| class names given twice in `quire` | 31 | 10 |
| lines of a function: `quire.long` | 90 | 60 |
| lines of a function: `quire.gone` | 70 | 60 |
| lines of a function: `quire.short` | 70 | 60 |
"""
    found = {
        "lines of a function": 50,
        "lines of Python in `quire`": 66_000,
        "class names given twice in `quire`": 5,
        "lines of a function: `quire.long`": 80,
        "lines of a function: `quire.short`": 60,
    }
    assert (
        shape.lowered(page, found)
        == """
| lines of a function | 60 | 60 |
| lines of Python in `quire` | 66,400 | 55,000 |
| class names given twice in `quire` | 10 | 10 |
| lines of a function: `quire.long` | 80 | 60 |
"""
    )
