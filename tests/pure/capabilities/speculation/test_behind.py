"""What a draft model has yet to compute of texts that end, and of those that go on after that."""

from __future__ import annotations

import pytest

from quire.capabilities.speculation.behind import Behind
from quire.core.memory import BlockTable
from quire.core.protocol import Chunk, Readout, Step


def chunk_of(seq_id: int, start: int, token_ids: list[int], drafts: int, confirmed: int) -> Chunk:
    """confirmed: drafts that the target's state has yet to see."""
    slot = BlockTable((7,), 4, keeps_state=True, confirmed=confirmed)
    table = BlockTable((1, 2, 3), 4, further=(slot,))
    return Chunk(seq_id, token_ids, start, table, 5, Readout(1 + drafts) if drafts else None)


def ended(num_tokens: int) -> Behind:
    """A text of 6 tokens had 3 drafts verified, which gave so many tokens; then it was ended."""
    behind = Behind(keeps_states=True)
    behind.take(chunk_of(1, 5, [10, 11, 12, 13], 3, 0))
    behind.verified(chunk_of(1, 5, [10, 11, 12, 13], 3, 0), num_tokens)
    (left,) = behind.before_moves(Step(chunks=[], closed=[1]))
    assert left.token_ids == [11, 12, 13][: num_tokens - 1]
    assert len(left.drafts) == num_tokens - 1, "who knows whether the text has them"
    return behind


@pytest.mark.parametrize("confirmed", [0, 1, 2])
def test_a_text_that_goes_on_tells_how_much_of_its_drafts_it_has(confirmed: int) -> None:
    part = ended(3).take(chunk_of(1, 6 + confirmed, [20, 21], 0, confirmed))
    assert part.token_ids == [*[11, 12][:confirmed], 20, 21] and part.start == 6


@pytest.mark.parametrize(("seq_id", "start", "confirmed"), [(2, 8, 2), (1, 8, 0), (1, 5, 0)])
def test_what_goes_on_from_another_state_has_none_of_them(
    seq_id: int, start: int, confirmed: int
) -> None:
    behind = ended(3)
    part = behind.take(chunk_of(seq_id, start, [20], 0, confirmed))
    assert part.token_ids == [20] and part.start == start
    if seq_id == 1:
        later = behind.take(chunk_of(1, 8, [20], 0, 2))
        assert later.token_ids == [20], "they are told once"


def test_texts_that_never_go_on_are_forgotten() -> None:
    behind = Behind(keeps_states=True)
    for seq_id in range(3000):
        behind.verified(chunk_of(seq_id, 5, [10, 11], 1, 0), 2)
        behind.before_moves(Step(chunks=[], closed=[seq_id]))
    assert len(behind._ended) <= 1024
    assert behind.take(chunk_of(2999, 7, [20], 0, 1)).token_ids == [11, 20]
