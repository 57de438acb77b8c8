"""Spans of vectors in a prompt: whose blocks are whose."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from quire.core.errors import RequestError
from quire.core.memory import hash_blocks
from quire.core.protocol import Request, SoftCut, VectorSpan
from quire.core.scheduling.sequence import Sequence
from quire.text.params import SamplingParams
from support.talks import Talk

SIZE = 4


class Piece(NamedTuple):
    """Ids, or vectors, each a letter."""

    ids: list[int]
    vectors: str = ""


def text(*pieces: Piece, piece: int = 100, cuts: tuple[SoftCut, ...] = ()) -> Sequence:
    """A prompt of these, whose names are asked for as it grows by so many tokens."""
    tokens, spans = list[int](), list[VectorSpan]()
    for ids, vectors in pieces:
        tokens += ids
        if vectors:
            spans.append(VectorSpan(len(tokens), [letter.encode() for letter in vectors], None))
            tokens += [0] * len(vectors)
    sequence = Sequence(0, 0, (), spans=spans)
    sequence.cuts = cuts
    for first in range(0, len(tokens), piece):
        sequence.token_ids.extend(tokens[first : first + piece])
        sequence.hash_blocks(SIZE)
    return sequence


def names(*pieces: Piece) -> list[bytes]:
    found = text(*pieces).block_hashes
    for piece in (1, 3, 7):
        assert text(*pieces, piece=piece).block_hashes == found
    return found


def shared(one: list[bytes], other: list[bytes]) -> int:
    """Blocks at the beginning; no other is equal."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    assert not {*one[count:]} & {*other[count:]}
    return count


def test_a_text_without_vectors_is_named_as_ever() -> None:
    ids = list(range(1, 20))
    assert names(Piece(ids)) == hash_blocks(b"", ids, SIZE)


@pytest.mark.parametrize("at", range(12))
def test_who_differs_in_a_vector_shares_nothing_from_its_block_on(at: int) -> None:
    vectors = "abcdefghijkl"
    other = vectors[:at] + "Z" + vectors[at + 1 :]
    before, after = [7, 8, 9, 10, 11], [12, 13, 14, 15, 16]
    one = names(Piece(before, vectors), Piece(after))
    assert shared(one, names(Piece(before, vectors), Piece(after))) == len(one) == 5
    assert shared(one, names(Piece(before, other), Piece(after))) == (5 + at) // SIZE


def test_vectors_are_no_ids_and_stand_where_they_stand() -> None:
    ids = [0] * 12
    assert shared(names(Piece([], "aaaaaaaaaaaa")), names(Piece(ids))) == 0
    assert shared(names(Piece(ids[:1], "aaa")), names(Piece([], "aaa"), Piece(ids[:1]))) == 0
    assert (
        shared(names(Piece([], "ab"), Piece([0], "c")), names(Piece([], "a"), Piece([0], "bc")))
        == 0
    )
    assert shared(names(Piece([], "aa"), Piece(ids[:2])), names(Piece([], "aaa"), Piece([0]))) == 0


def test_where_a_prompt_is_parted_into_spans_counts_only_within_a_block() -> None:
    whole = names(Piece([], "abcdefgh"))
    assert names(Piece([], "abcd"), Piece([], "efgh")) == whole


def test_cuts_and_vectors_in_one_block_both_count() -> None:
    cut = SoftCut(0, 5, -1.0, 3)
    pieces = Piece([1, 2, 3, 4], "ab"), Piece([5] * 6)
    found = [
        text(*pieces).block_hashes,
        text(*pieces, cuts=(cut,)).block_hashes,
        text(Piece([1, 2, 3, 4, 0, 0] + [5] * 6), cuts=(cut,)).block_hashes,
        text(Piece([1, 2, 3, 4], "ax"), Piece([5] * 6), cuts=(cut,)).block_hashes,
    ]
    assert len({one[0] for one in found}) == 1
    assert len({one[1] for one in found}) == len({one[2] for one in found}) == len(found)
    assert all(text(*pieces, cuts=(cut,), piece=n).block_hashes == found[1] for n in (1, 2, 5))


def test_a_branch_has_its_trunks_names() -> None:
    trunk = text(Piece([1], "abcdef"), Piece([2] * 5), piece=6)
    child = trunk.child(1, 1)
    child.block_hashes.clear()
    child.hash_blocks(SIZE)
    assert child.block_hashes == trunk.block_hashes


def test_a_turn_has_none() -> None:
    talk = Talk()
    talk.sessions.open("s")
    talk.sessions.append("s", [1, 2, 3])
    spans, params = (VectorSpan(0, [b"a", b"b", b"c"], None),), SamplingParams(max_tokens=2)
    request = Request("t", (1, 2, 3), params, 2, seed=0, spans=spans)
    with pytest.raises(RequestError, match="a session's history is of tokens") as refused:
        talk.sessions.add_turn("s", talk.sessions.get("s").history, request)
    assert refused.value.field == "prompt_embeds"
