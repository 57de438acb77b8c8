"""The buddy system against a map of single blocks, which knows nothing of lists and orders."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_lab.contiguous.buddy import BuddyRegions
from support.contiguous_invariants import check_buddy, free_regions


def carry_out(
    num_blocks: int, held: dict[int, int], steps: list[tuple[int | None, int | None]]
) -> dict[int, int] | None:
    """What is held after an exchange that takes from the smallest, first region each time."""
    held = held.copy()
    for start, order in steps:
        if start is not None:
            del held[start]
        if order is not None:
            region = next((r for r in free_regions(num_blocks, held)[order:] if r), None)
            if region is None:
                return None
            held[region[0]] = order
    return held


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 5, 8, 13, 100])
def test_any_number_of_blocks_is_cut_into_powers_of_two(num_blocks: int) -> None:
    check_buddy(BuddyRegions(num_blocks), {})


def test_a_region_is_split_down_to_the_size_asked_for_and_merges_back() -> None:
    buddy = BuddyRegions(13)
    assert buddy._free == [[12], [], [8], [0]]
    assert buddy.take(0) == 12  # the smallest that suffices
    assert buddy.take(0) == 8  # splits 8..11
    assert buddy._free == [[9], [10], [], [0]]
    assert buddy.take(1) == 10
    assert buddy.take(2) == 0
    buddy.release(10)
    assert buddy._free == [[9], [10], [4], []]
    buddy.release(8)
    assert buddy._free == [[], [], [4, 8], []]  # not buddies: 0..3 is the other half of 0..7
    buddy.release(0)
    assert buddy._free == [[], [], [8], [0]]


def test_no_region_is_larger_than_the_largest_aligned_piece() -> None:
    buddy = BuddyRegions(13)
    assert buddy.take(4) is None
    assert (buddy.num_available(3), buddy.num_available(2), buddy.num_available(0)) == (1, 3, 13)
    assert buddy.num_scattered(3) == 5


def test_claim_takes_the_very_region() -> None:
    buddy = BuddyRegions(8)
    buddy.claim(5, 0)
    assert buddy._free == [[4], [6], [0], []]
    buddy.release(5)
    assert buddy._free == [[], [], [], [0]]


def test_an_exchange_that_fails_has_changed_nothing() -> None:
    buddy = BuddyRegions(8)
    assert buddy.exchange([(None, 1)] * 4) == [0, 2, 4, 6]
    # 0..3 is taken where 0 and 2 were; then there is no second region of four.
    assert buddy.exchange([(0, None), (2, 2), (4, 2)]) is None
    check_buddy(buddy, {0: 1, 2: 1, 4: 1, 6: 1})
    assert buddy.exchange([(0, None), (2, 2)]) == [0]
    check_buddy(buddy, {0: 2, 4: 1, 6: 1})


def test_giving_back_twice_is_an_error() -> None:
    buddy = BuddyRegions(4)
    start = buddy.take(1)
    assert start is not None
    buddy.release(start)
    with pytest.raises(KeyError):
        buddy.release(start)


@settings(max_examples=200, deadline=None)
@given(
    num_blocks=st.integers(1, 40),
    held=st.lists(st.integers(0, 2), max_size=12),
    wanted=st.lists(st.integers(0, 4), max_size=6),
    data=st.data(),
)
def test_any_order_of_taking_gives_the_same_answer(
    num_blocks: int, held: list[int], wanted: list[int], data: st.DataObject
) -> None:
    answers = []
    shuffled = data.draw(st.permutations(wanted))
    given_back = data.draw(st.sets(st.integers(0, 11)))
    for orders in (wanted, shuffled, sorted(wanted, reverse=True)):
        buddy = BuddyRegions(num_blocks)
        taken = [buddy.take(order) for order in held]
        for i in given_back:
            if i < len(taken) and taken[i] is not None:
                buddy.release(taken[i])
        answers.append(buddy.exchange([(None, order) for order in orders]) is None)
    assert len(set(answers)) == 1


@settings(max_examples=200, deadline=None)
@given(num_blocks=st.integers(1, 40), data=st.data())
def test_random_walks_keep_every_promise(num_blocks: int, data: st.DataObject) -> None:
    buddy = BuddyRegions(num_blocks)
    held: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 30))):
        steps: list[tuple[int | None, int | None]] = []
        mine = list(held)
        for _ in range(data.draw(st.integers(1, 4))):
            start = data.draw(st.sampled_from([None, *mine]))
            if start is not None:
                mine.remove(start)
            steps.append((start, data.draw(st.sampled_from([None, 0, 0, 1, 2, 3, 4]))))
        expected = carry_out(num_blocks, held, steps)
        assert (buddy.exchange(steps) is None) == (expected is None)
        held = held if expected is None else expected
        check_buddy(buddy, held)
    for start in list(held):
        buddy.release(start)
    check_buddy(buddy, {})
