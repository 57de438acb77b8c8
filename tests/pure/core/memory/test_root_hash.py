"""Whose blocks can be found by whom: roots of hash chains."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.memory import root_hash

_TEXTS = ["", "a", "b", "ab", "adapter", "salt", "a\x00", "\x00", "saltb", "a" * 32]


def test_no_pair_of_a_salt_and_an_adapter_is_like_another() -> None:
    pairs = [(salt, adapter.encode()) for salt, adapter in product(_TEXTS, _TEXTS)]
    assert len({root_hash(*pair) for pair in pairs}) == len(pairs)
    assert root_hash("") == b"", "what is nobody's own is everybody's"


@settings(max_examples=40, deadline=None)
@given(st.text(), st.binary(), st.text(), st.binary())
def test_different_pairs_have_different_roots(
    salt: str, adapter: bytes, other: str, its: bytes
) -> None:
    same = (salt, adapter) == (other, its)
    assert (root_hash(salt, adapter) == root_hash(other, its)) is same
