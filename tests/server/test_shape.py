"""What a request costs in calls keeps to the table in docs/architecture-shape.md."""

from __future__ import annotations

import pytest
from scripts import shape


@pytest.mark.skipif(not shape.PAGE.exists(), reason="Quire runs without its sources")
@pytest.mark.parametrize("what", sorted(shape.RUNNING))
def test_no_more_is_called_than_may_be(what: str) -> None:
    page = shape.PAGE.read_text(encoding="utf-8")
    assert shape.RUNNING[what]() <= shape.table(page)[what].at_most
