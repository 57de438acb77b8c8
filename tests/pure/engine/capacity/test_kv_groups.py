"""How layers are grouped by window, and how the memory is divided among them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.kv_groups import layers_by_window
from quire.core.memory import Window, kept_by
from quire.execution.kv_bytes import divide


def test_layers_are_grouped_by_window_full_attention_first() -> None:
    assert layers_by_window((12, None, 12, None)) == {None: (1, 3), 12: (0, 2)}
    assert layers_by_window((12, 12)) == {12: (0, 1)}
    assert list(layers_by_window((8, None, 4))) == [None, 4, 8]


def test_a_windowed_sequence_needs_its_window_and_a_step_shares_the_rest() -> None:
    window = Window(8, 16)  # 7 tokens and a new one: 2 blocks, or 3, or 4 where a step ends inside
    assert kept_by(None).most_held([100] * 3, 4) == 300
    assert window.most_held([100], 4) == 4 + 3
    assert window.most_held([100] * 3, 4) == 3 * 4 + 3
    assert window.most_held([2] * 3, 4) == 6


@pytest.mark.parametrize(
    ("budget", "blocks"),
    [
        (40, [13, 13]),  # too little for one of the longest: equally many
        (80, [34, 12]),  # 30 and 8 for one of the longest leave 12 bytes: 4 more each ...
        (200, [92, 15]),  # ... until the second has all that it can use
    ],
)
def test_windowed_kv_groups_get_no_more_than_they_can_use(budget: int, blocks: list[int]) -> None:
    assert divide(budget, [2, 1], [30, 8], [None, 15]) == blocks


@given(st.data(), st.integers(1, 4), st.integers(0, 500))
def test_the_budget_is_kept_and_used(data: st.DataObject, kv_groups: int, more: int) -> None:
    each = st.lists(st.integers(1, 9), min_size=kv_groups, max_size=kv_groups)
    block_bytes, least = data.draw(each), data.draw(each)
    most = [None, *(n + extra for n, extra in zip(least[1:], data.draw(each)[1:], strict=True))]
    budget = sum(block_bytes) + more
    blocks = divide(budget, block_bytes, least, most)
    spent = sum(n * size for n, size in zip(blocks, block_bytes, strict=True))
    assert budget - block_bytes[0] < spent <= budget
    assert min(blocks) >= 1
    assert all(cap is None or n <= cap for n, cap in zip(blocks, most, strict=True))
