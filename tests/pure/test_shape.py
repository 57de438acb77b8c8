"""The code keeps the measures in docs/architecture.md (Shape), and they keep up with the code."""

from __future__ import annotations

import pytest
from scripts import shape

if not shape.PAGE.exists():
    pytest.skip("Quire runs without its sources", allow_module_level=True)

PAGE = shape.PAGE.read_text(encoding="utf-8")
ROWS = shape.table(PAGE)
FIGURES = shape.measured(ROWS)


def test_every_measure_has_a_row() -> None:
    measures = {*shape.COUNTS, *shape.GREATEST, *shape.RUNNING}
    assert {row.split(": ")[0] for row in ROWS} == measures
    assert measures <= ROWS.keys()


@pytest.mark.parametrize("what", sorted(FIGURES))
def test_no_more_is_measured_than_may_be(what: str) -> None:
    assert FIGURES[what] <= ROWS[what].at_most, "python scripts/shape.py tells what counts"


def test_ceilings_only_go_down() -> None:
    assert shape.lowered(PAGE, FIGURES) == PAGE, "python scripts/shape.py --lower"


def test_lower_ceilings_are_written_down() -> None:
    page = """
| lines of a function | 60 | 60 |
| lines of Python in `quire` | 66,400 | 55,000 |
| class names given twice in `quire` | 31 | 10 |
| lines of a function: `quire.long` | 90 | 60 |
| lines of a function: `quire.gone` | 70 | 60 |
| lines of a function: `quire.short` | 70 | 60 |
"""
    figures = {
        "lines of a function": 50,
        "lines of Python in `quire`": 66_000,
        "class names given twice in `quire`": 5,
        "lines of a function: `quire.long`": 80,
        "lines of a function: `quire.short`": 60,
    }
    assert (
        shape.lowered(page, figures)
        == """
| lines of a function | 60 | 60 |
| lines of Python in `quire` | 66,400 | 55,000 |
| class names given twice in `quire` | 10 | 10 |
| lines of a function: `quire.long` | 80 | 60 |
"""
    )
