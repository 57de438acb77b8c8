"""What is derived from a text equals what is counted of it afresh."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from quire.execution.sampling.past import Past

TOKENS = st.integers(0, 5)
DEEDS = st.lists(
    st.tuples(st.sampled_from(["take", "count", "forget", "fork"]), st.integers(0, 99)),
    max_size=30,
)


@given(st.lists(TOKENS, max_size=8), DEEDS, st.data())
def test_counts_are_those_of_the_text(
    prompt: list[int], deeds: list[tuple[str, int]], data: st.DataObject
) -> None:
    pasts: list[tuple[Past, list[int]]] = [(Past(prompt), [])]
    for deed, number in deeds:
        past, text = pasts[number % len(pasts)]
        if deed == "take":
            start = data.draw(st.integers(0, len(text)))
            tokens = data.draw(st.lists(TOKENS, max_size=6))
            past.take(start, tokens)
            text[start:] = tokens
        elif deed == "count":
            length = data.draw(st.integers(0, len(text)))
            counts = past.counts(length)
            found = dict(zip(counts.token_ids, counts.counts, strict=True))
            assert found == Counter(text[:length])
            for size in range(4):
                for words in (text[max(0, length - size) : length], [9] * size):
                    expected = size <= length and text[length - len(words) : length] == words
                    if len(words) == size:
                        assert past.ends_with(words, length) == expected
        elif deed == "forget":
            past.forget()
        else:
            pasts.append((past.fork(), text.copy()))
        assert set(past.prompt) == set(prompt)


def test_a_fork_goes_its_own_way() -> None:
    past = Past([1])
    past.take(0, [2, 3])
    past.counts(2)
    child = past.fork()
    child.take(2, [3, 3])
    assert child.counts(4).counts.tolist() == [1.0, 3.0]
    assert past.counts(2).counts.tolist() == [1.0, 1.0]
    past.take(1, [7])
    assert past.counts(2).token_ids.tolist() == [2, 7]
    assert child.counts(2).token_ids.tolist() == [2, 3]
