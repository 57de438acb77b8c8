"""What steps take, as it is measured: by their rows, and by a draft model's passes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.capabilities.speculation.costs import Measured, PassCosts, StepCosts
from quire.core.memory import BlockTable
from quire.core.protocol import TO_DRAFT, Chunk, Readout, Step


def decode(drafts: int) -> Step:
    """A step of one sequence, with so many drafts of a model."""
    tokens = [7] + [TO_DRAFT] * drafts
    return Step(chunks=[Chunk(0, tokens, 5, BlockTable((0, 1), 4), 3, Readout(len(tokens)))])


PLAIN, DRAFTED = decode(0), decode(2)


def test_costs_follow_what_is_measured() -> None:
    costs = StepCosts()
    costs.observe(1, 0.010)
    assert costs.seconds(1) == pytest.approx(0.010)
    assert 0.010 < costs.seconds(9) < 0.016  # as is usual, until it is measured
    for _ in range(20):
        costs.observe(9, 0.030)
    assert costs.seconds(9) == pytest.approx(0.030, rel=0.1)
    for _ in range(30):
        costs.observe(1, 0.020)
    assert costs.seconds(1) == pytest.approx(0.020, rel=0.05)
    costs.observe(1, 5.0)  # somebody else had the machine
    assert costs.seconds(1) < 0.025


@given(st.lists(st.tuples(st.integers(1, 3000), st.floats(1e-5, 1.0)), min_size=1, max_size=50))
def test_costs_are_above_zero_and_grow_with_rows(steps: list[tuple[int, float]]) -> None:
    costs = StepCosts()
    for rows, seconds in steps:
        costs.observe(rows, seconds)
    found = [costs.seconds(rows) for rows in range(1, 4000, 7)]
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(found)) and found[0] > 0


def test_passes_are_due_until_each_number_has_been_measured_often_enough() -> None:
    """At most twice as many as any before: what they take has to be foreseeable."""
    costs, tried = PassCosts(), []
    while (due := costs.due()) is not None:
        tried.append(due)
        costs.observe(due, 0.1 * due)
    assert sorted(tried) == [1] * 5 + [2] * 5 + [4] * 5 + [8] * 5 + [16] * 5
    assert all(later <= 2 * max(tried[:place]) for place, later in enumerate(tried) if place)
    assert costs.share(3) == pytest.approx(0.3) and costs.share(12) == pytest.approx(1.2)


def test_a_step_after_one_without_drafts_is_no_measure_of_passes() -> None:
    """It finds its caches cold; one long after has nothing near to be compared with."""
    measured = Measured()
    for _ in range(8):
        measured.observe(PLAIN, 0.010)
    measured.observe(DRAFTED, 0.090)
    assert measured.passes(1).shares == PassCosts().shares
    for _ in range(5):
        measured.observe(DRAFTED, 0.015)
    for _ in range(100):
        measured.observe(DRAFTED, 0.070)
    assert measured.passes(1).share(2) == pytest.approx(0.5, rel=0.05)
