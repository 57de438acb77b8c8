"""The rules of the search on scores by hand. That they are transformers' is tested with models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from quire.capabilities.beams import BeamSearch
from quire.core.protocol.request import FinishReason, Request
from quire.core.scheduling import Extension
from quire.text.params.sampling_params import SamplingParams

EOS = 0


def search(width: int = 2, max_tokens: int = 10, **params: Any) -> BeamSearch:
    sampling = SamplingParams(use_beam_search=True, n=width, max_tokens=max_tokens, **params)
    return BeamSearch(Request("r", (5,), sampling, max_tokens, 0, eos_token_ids=frozenset([EOS])))


def advance(
    beams: BeamSearch, outputs: list[list[int]], *candidates: list[tuple[int, float]]
) -> list[Extension]:
    return beams.advance(len(outputs[0]) + 1, candidates, outputs.__getitem__)


def test_the_best_of_all_continuations_go_on() -> None:
    beams = search()
    first = advance(beams, [[]], [(1, -1.0), (2, -1.5), (3, -4.0), (4, -5.0)])
    assert first == [Extension(0, 1, -1.0), Extension(0, 2, -1.5)]
    second = advance(beams, [[1], [2]], [(7, -3.0), (8, -3.5)], [(7, -0.5), (9, -0.75)])
    assert second == [Extension(1, 7, -2.0), Extension(1, 9, -2.25)]  # beam 0 dies, beam 1 splits


def test_equals_go_on_in_the_order_of_their_beams() -> None:
    beams = search(width=3)
    advance(beams, [[]], [(token, -1.0) for token in range(1, 7)])
    same = [(7, -1.0), (8, -1.0), (9, -3.0)]
    choices = advance(beams, [[1], [2], [3]], same, [(5, -0.5), *same], same)
    assert [choice[:2] for choice in choices] == [(1, 5), (0, 7), (0, 8)]


def test_what_cannot_be_chosen_is_not_looked_at() -> None:
    looked_at: list[int] = []

    class Candidates(list[tuple[int, float]]):
        def __iter__(self) -> Iterator[tuple[int, float]]:
            for candidate in super().__iter__():
                looked_at.append(candidate[0])
                yield candidate

    advance(search(width=2), [[]], Candidates((token, -token) for token in range(1, 1000)))
    assert len(looked_at) < 10


def test_a_beam_that_ends_makes_room_for_another() -> None:
    beams = search()
    choices = advance(beams, [[]], [(EOS, -0.5), (1, -1.0), (2, -1.5), (3, -9.0)])
    assert choices == [Extension(0, 1, -1.0), Extension(0, 2, -1.5)]
    assert [h.token_ids for h in beams.finished] == [(EOS,)]


def test_an_end_counts_only_among_the_best() -> None:
    beams = search()
    advance(beams, [[]], [(1, -1.0), (2, -1.5), (EOS, -1.6), (3, -9.0)])
    assert beams.finished == []
    choices = advance(beams, [[1], [2]], [(7, -0.5), (EOS, -0.6), (8, -3.0)], [(EOS, -0.2)])
    assert [choice.token_id for choice in choices] == [7, 8]
    assert [one.token_ids for one in beams.finished] == [(1, EOS)], "the third is none of the best"


@pytest.mark.parametrize(("penalty", "score"), [(0.0, -3.0), (1.0, -1.5), (2.0, -0.75)])
def test_scores_are_divided_by_length(penalty: float, score: float) -> None:
    beams = search(length_penalty=penalty)
    advance(beams, [[]], [(1, -1.0), (2, -1.5), (3, -8.0), (4, -9.0)])
    advance(beams, [[1], [2]], [(EOS, -2.0), (3, -3.0)], [(3, -4.0), (4, -5.0)])
    assert beams.finished[0].score == pytest.approx(score)
    assert beams.finished[0].cumulative_logprob == -3.0


def test_all_beams_end_at_the_last_token() -> None:
    beams = search(max_tokens=1)
    assert advance(beams, [[]], [(1, -1.0), (EOS, -1.5), (3, -2.0), (4, -3.0)]) == []
    assert [h.token_ids for h in beams.finished] == [(1,), (EOS,)]
    reasons = [beams.finish_reason(h) for h in beams.finished]
    assert reasons == [FinishReason.LENGTH, FinishReason.STOP]


@pytest.mark.parametrize(
    ("early_stopping", "goes_on"), [(True, False), (False, True), ("never", True)]
)
def test_when_a_full_set_of_hypotheses_ends_the_search(
    early_stopping: bool | str, goes_on: bool
) -> None:
    beams = search(early_stopping=early_stopping, stop_token_ids=[9])
    choices = advance(
        beams, [[]], [(EOS, -1.0), (9, -1.0), (1, -1.0), (2, -1.0), (3, -8.0), (4, -9.0)]
    )
    assert len(beams.finished) == 2
    # The live beams' -1.0 is no better at this length; at the longest it could still be.
    assert bool(choices) == (early_stopping == "never")
    if goes_on and early_stopping is False:
        better = search(stop_token_ids=[9], length_penalty=0.0)
        assert advance(better, [[]], [(EOS, -1.0), (9, -3.0), (1, -3.5), (2, -4.0)]) == []


def test_no_end_before_min_tokens() -> None:
    beams = search(min_tokens=2)
    advance(beams, [[]], [(EOS, -0.5), (1, -1.0), (2, -1.5), (3, -9.0)])
    assert beams.finished == []
