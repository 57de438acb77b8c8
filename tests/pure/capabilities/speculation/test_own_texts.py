"""Drafts from a request's own text: what brute force finds, however the text came to be."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.capabilities.speculation import Drafter
from quire.capabilities.speculation.config import SpeculativeConfig
from quire.capabilities.speculation.own_texts import NgramDrafter
from quire.capabilities.speculation.suffix import SuffixDrafter
from quire.core.scheduling.sequence import Sequence
from support.guessing import Reference, Served, request_of, same

Case = tuple[Callable[[], Drafter], Reference]


def ngram(longest: int, shortest: int) -> Case:
    known = Reference({shortest, longest}, 1, longest, 64, math.inf, 0.0)
    return lambda: NgramDrafter(longest, shortest), known


def suffix(**options: float) -> Case:
    config = SpeculativeConfig(
        suffix_decoding_max_spec_factor=options.get("factor", 2.0),
        suffix_decoding_min_token_prob=options.get("least", 0.1),
        suffix_decoding_cache_bytes=0,
    )
    return lambda: SuffixDrafter(config), Reference((1, 4), walked=32, **options)


CASES = {
    "ngram": ngram(5, 2),
    "ngram of one": ngram(1, 1),
    "ngram of two to three": ngram(3, 2),
    "suffix": suffix(),
    "suffix, sure": suffix(least=0.6),
    "suffix, one for each": suffix(factor=1.0, least=0.0),
}
CHANGES = st.one_of(
    st.tuples(st.just("grow"), st.lists(st.integers(0, 2), min_size=1, max_size=7)),
    st.tuples(st.just("cut"), st.integers(0, 20)),
    st.tuples(st.just("fork"), st.lists(st.integers(0, 2), min_size=1, max_size=2)),
)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=60, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    changes=st.lists(CHANGES, max_size=8),
    most=st.integers(1, 16),
)
def test_drafts_are_those_of_brute_force(
    case: str, prompt: list[int], changes: list[tuple[str, object]], most: int
) -> None:
    make, reference = CASES[case]
    drafter, request, branches = make(), request_of(prompt), [Sequence(0, 0, prompt)]
    for what, value in [("", None), *changes]:
        branch = branches[-1]
        if what == "grow":
            branch.token_ids.extend(value)  # type: ignore[arg-type]
        elif what == "cut":
            branch.token_ids = array("I", branch.token_ids[value:] or [1])  # type: ignore[misc]
        elif what == "fork":
            branches.append(branch.child(len(branches), len(branches)))
            branches[-1].token_ids.extend(value)  # type: ignore[arg-type]
        for branch in branches:
            text = branch.token_ids.tolist()[:32]  # in longer ones, not all places are looked at
            if text == branch.token_ids.tolist():
                assert same(drafter.propose(request, branch, most), reference.own(text, most))
    for branch in branches:
        drafter.close(branch.seq_id)
    assert drafter.num_bytes == 0


@pytest.mark.parametrize("case", ["ngram", "suffix"])
def test_a_match_is_found_however_long_the_text(case: str) -> None:
    rng = random.Random(1)
    told = list(range(90_000, 90_040))
    text = told + [rng.randrange(50_000) for _ in range(20_000)] + told[:8]
    served = Served(CASES[case][0]())
    assert served.drafts_after(text) == told[8:24]


def test_a_text_that_repeats_itself_goes_on_beyond_its_end() -> None:
    for case in ("ngram", "suffix"):
        assert Served(CASES[case][0]()).drafts_after([5, 6, 7] * 5) == ([5, 6, 7] * 6)[:16]


def test_the_latest_of_equal_matches_and_the_longest_of_all() -> None:
    served = Served(NgramDrafter(3, 2), most=1)
    assert served.drafts_after([1, 2, 30, 1, 2, 40, 1, 2]) == [40]
    assert served.drafts_after([9, 1, 2, 30, 1, 2, 40, 9, 1, 2]) == [30]
    assert served.drafts_after([1, 30, 2, 1]) == []  # one token is too short


def test_what_most_places_go_on_with_is_drafted_with_its_share_as_chance() -> None:
    served = Served(CASES["suffix"][0]())
    one = served.begin([7, 1, 0, 7, 1, 2, 7, 1, 3, 7])
    proposal = served.ask(one)
    assert proposal is not None and proposal.tokens[0] == 1 and proposal.evidence == 1
    assert proposal.chances[0] == pytest.approx((2 + 1.5 + 4 / 3) / (2 + 1.5 + 4 / 3 + 8))
    assert all(0 < chance < 1 for chance in proposal.chances)


def test_memory_is_that_of_what_lives() -> None:
    drafter = NgramDrafter(5, 2)
    served = Served(drafter)
    lives = [served.begin([1] * 1000) for _ in range(3)]
    for one in lives:
        served.ask(one)
    all_three = drafter.num_bytes
    for number, one in enumerate(lives):
        assert drafter.num_bytes == all_three * (3 - number) // 3
        drafter.close(one[1].seq_id)
    drafter.close(12345)  # whom nobody knows
    assert drafter.num_bytes == 0
