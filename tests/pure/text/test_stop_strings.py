"""Stop strings cut a text at the same place however it comes, and hold no more than they must."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.text.stop_strings import StopAutomaton, StopStrings

STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=6)


def strings(*stops: str, include: bool = False) -> StopStrings:
    return StopStrings(StopAutomaton(stops), include)


def first_stop(text: str, stops: Sequence[str], after: int = -1) -> tuple[int, str] | None:
    """Where the first stop string is complete, and the longest that ends there, by brute force.

    after: a place where none may be complete yet.
    """
    for end in range(after + 1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return end, max(complete, key=len)
    return None


def longest_beginning(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of a text that begins a stop string."""
    ends = (len(text) - start for start in range(len(text)))
    return next((n for n in ends if any(s.startswith(text[-n:]) for s in stops)), 0)


@settings(max_examples=500)
@given(st.lists(st.text("ab", max_size=6), max_size=8), STOPS, st.booleans())
@example(["aaab"], ["aab"], False)
def test_text_ends_at_the_first_complete_stop_string_however_it_comes(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    scanner, shown, read = strings(*stops, include=include), "", ""
    text = "".join(pieces)
    for piece in pieces:
        shown, read = shown + scanner.push(piece), read + piece
        if scanner.matched is not None:
            break
        assert shown == read[: len(read) - longest_beginning(read, stops)]
    found = first_stop(text, stops)
    if found is None:
        assert scanner.matched is None
        assert shown + scanner.flush() == text
    else:
        end, stop = found
        assert scanner.matched == stop
        assert shown == text[: end if include else end - len(stop)]


@settings(max_examples=500)
@given(st.lists(st.text("ab", max_size=3), max_size=8), STOPS, st.booleans(), st.integers(0, 8))
@example(["xa", "b"], ["ab"], False, 1)
@example(["ab", "b"], ["ab", "abb"], False, 1)
@example(["ab", "ab"], ["ab"], False, 1)
def test_what_is_complete_too_early_is_text_and_what_only_begins_there_ends_it(
    pieces: list[str], stops: list[str], include: bool, early: int
) -> None:
    """early: pieces that no stop string may end."""
    scanner, shown = strings(*stops, include=include), ""
    for number, piece in enumerate(pieces):
        shown += scanner.push(piece, may_end=number >= early)
        if scanner.matched is not None:
            break
    text, free = "".join(pieces), len("".join(pieces[:early]))
    found = first_stop(text, stops, after=free)
    if found is None:
        assert scanner.matched is None and shown + scanner.flush() == text
        return
    end, stop = found
    assert scanner.matched == stop
    assert shown == text[: end if include else end - len(stop)]


@pytest.mark.parametrize("pieces", [["xabcd"], ["xa", "bcd"], ["xabc", "d"], [*"xabcd"]])
def test_a_stop_string_inside_another_ends_the_text_first(pieces: list[str]) -> None:
    scanner = strings("abcd", "bc")
    shown = "".join(scanner.push(piece) for piece in pieces if scanner.matched is None)
    assert (shown, scanner.matched) == ("xa", "bc")


def test_of_those_that_end_together_the_longest_counts() -> None:
    scanner = strings("c", "abc", "bc")
    assert scanner.push("xabc") == "x"
    assert scanner.matched == "abc"


def test_text_that_cannot_be_a_stop_string_is_not_held_back() -> None:
    scanner = strings("END")
    assert scanner.push("abcE") == "abc"
    assert scanner.push("x") == "Ex"


def test_a_stop_string_can_be_kept() -> None:
    scanner = strings("END", include=True)
    assert scanner.push("abEN") + scanner.push("Dcd") == "abEND"
    assert scanner.matched == "END"


def test_without_stop_strings_everything_is_shown() -> None:
    scanner = StopStrings(None, include_in_output=False)
    assert scanner.push("abc") == "abc"
    assert scanner.flush() == ""


class Counting(StopAutomaton):
    """Counts the nodes that are looked at."""

    looked = 0

    def __init__(self, stops: Sequence[str]) -> None:
        super().__init__(stops)
        looked = self

        class Table(dict[tuple[int, str], int]):
            def get(self, key, default=None):  # type: ignore[no-untyped-def]
                looked.looked += 1
                return super().get(key, default)

        self._next = Table(self._next)


def test_many_long_stop_strings_cost_a_text_no_more_than_one() -> None:
    text = ("a" * 255 + "b") * 20
    for stops in (["a" * 256], [chr(ord("c") + i) + "a" * 255 for i in range(64)] + ["a" * 256]):
        automaton = Counting(stops)
        scanner = StopStrings(automaton, include_in_output=False)
        for char in text:
            scanner.push(char)
        assert scanner.matched is None
        assert automaton.looked <= 2 * len(text)
