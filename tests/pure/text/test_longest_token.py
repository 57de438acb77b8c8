"""How much text a token may stand for, for tokenizers of every kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from quire.text.longest_token import longest_token
from support.small_tokenizers import BOUNDED, UNBOUNDED, byte_level

MADE = {name: make() for name, make in BOUNDED.items()}
# Characters that are composed, among others, and what the vocabularies know.
ODD = ["α\u0313\u0300\u0345", *"ab \u0301\u0323\u1100\u1161\u11a8ﬁ日🙂\x00\n"]
TEXTS = st.lists(st.sampled_from(ODD)).map("".join) | st.text(
    st.characters(exclude_categories=["Cs"])
)


@pytest.mark.parametrize("name", BOUNDED)
@given(text=TEXTS)
def test_no_token_stands_for_more_characters(name: str, text: str) -> None:
    tokenizer = MADE[name]
    longest = longest_token(tokenizer)
    assert longest is not None
    assert len(text) <= longest * len(tokenizer.encode(text, add_special_tokens=False).ids)


def test_the_longest_token_is_the_bound() -> None:
    assert longest_token(byte_level()) == 32
    assert (
        longest_token(byte_level(special=[AddedToken("<|a very long special token of forty|>")]))
        == 38
    )


@pytest.mark.parametrize("name", UNBOUNDED)
def test_where_a_token_may_stand_for_any_text_there_is_no_bound(name: str) -> None:
    assert longest_token(UNBOUNDED[name]()) is None


SWALLOWED = {
    "word piece": "x" * 500, "word level": "x" * 500, "unigram": "x" * 500,
    "no fallback": "x" * 500, "letters missing": "\u0100" * 500, "stripped": "a" + " " * 500,
    "accents stripped": "a" + "\u0301" * 500, "spaces collapsed": " " * 500,
    "shortened": "ab" * 250, "spaces removed": " " * 500, "words removed": " " * 500,
    "greedy special token": "<end>" + " " * 500,
}  # fmt: skip


@pytest.mark.parametrize("name", SWALLOWED)
def test_they_do_swallow_texts(name: str) -> None:
    tokenizer: Tokenizer = UNBOUNDED[name]()
    assert len(tokenizer.encode(SWALLOWED[name], add_special_tokens=False).ids) <= 3
