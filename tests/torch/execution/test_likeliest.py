"""The likeliest tokens at one position."""

from __future__ import annotations

from array import array

import pytest

from quire.execution.sampling.likeliest import Likeliest


def test_it_is_a_sequence_of_pairs() -> None:
    likeliest = Likeliest(array("d", [5, 128_000, 2, -0.1, -1.5, -3.0]), 2)
    pairs = [(5, -0.1), (128_000, -1.5)]
    assert list(likeliest) == pairs and len(likeliest) == 2
    assert likeliest == tuple(pairs) and likeliest != pairs[:1]
    assert likeliest[1] == likeliest[-1] == pairs[1] and likeliest[:1] == pairs[:1]
    assert all(type(token_id) is int for token_id, _ in likeliest)
    with pytest.raises(IndexError):
        likeliest[2]
