"""What a draft model with states has yet to compute of texts that end, and of those that go on."""

from __future__ import annotations

from quire.capabilities.speculation.behind import Behind
from quire.core.memory import BlockTable
from quire.core.protocol import Chunk, Opened, Readout, Request, Step
from quire.text.params import SamplingParams


def chunk_of(start: int, token_ids: list[int], drafts: int, dropped: int = 0) -> Chunk:
    """dropped: blocks of a window's that are gone."""
    slot = BlockTable((7,), 4, keeps_state=True)
    table = BlockTable((1, 2, 3)[dropped:], 4, dropped, further=(slot,))
    return Chunk(1, token_ids, start, table, 5, Readout(1 + drafts) if drafts else None)


def verified() -> Behind:
    """A text of 6 tokens had 3 drafts verified, of which two were right."""
    behind = Behind(keeps_states=True)
    behind.take(chunk_of(5, [10, 11, 12, 13], 3))
    behind.verified(chunk_of(5, [10, 11, 12, 13], 3), 3)
    return behind


def test_a_text_that_ended_among_its_drafts_leaves_no_trace_of_them() -> None:
    behind = verified()
    (left,) = behind.before_moves(Step(chunks=[], closed=[1], within=[1]))
    assert left.token_ids == left.drafts == [11, 12]
    part = behind.take(chunk_of(6, [11, 20], 0))
    assert part.token_ids == [11, 20] and part.start == 6


def test_a_text_that_was_ended_has_all_that_were_right() -> None:
    behind = verified()
    (left,) = behind.before_moves(Step(chunks=[], closed=[1]))
    assert left.token_ids == [11, 12] and not left.drafts
    part = behind.take(chunk_of(8, [20], 0))
    assert part.token_ids == [20] and part.start == 8


def test_it_is_computed_while_its_window_is_there() -> None:
    behind = verified()
    going_on = chunk_of(8, [20], 0, dropped=1)
    (left,) = behind.before_moves(Step(chunks=[going_on]))
    assert not left.table.num_dropped and left.token_ids == [11, 12]
    assert behind.take(going_on).token_ids == [20]


def test_it_waits_for_what_goes_on_at_once() -> None:
    behind = verified()
    going_on = chunk_of(8, [20], 0)
    assert behind.before_moves(Step(chunks=[going_on])) == []
    part = behind.take(going_on)
    assert part.token_ids == [11, 12, 20] and part.start == 6


def test_what_goes_on_after_a_cut_is_no_part_of_what_was_there() -> None:
    behind = Behind()
    assert behind.leave([chunk_of(13, [4], 0)])
    request = Request("turn", (4,), SamplingParams(), 1, 0)
    after_a_cut = chunk_of(14, [17], 0)  # as far as others' blocks have its new beginning
    step = Step(chunks=[after_a_cut], opened=[Opened(1, request, 0, 15)])
    assert [left.token_ids for left in behind.before_moves(step)] == [[4]]
    assert behind.take(after_a_cut).start == 14
