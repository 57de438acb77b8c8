"""Drafts from outputs served before: only what may be read, in the memory that was given."""

from __future__ import annotations

import random
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.capabilities.speculation import Proposal
from quire.capabilities.speculation._native import Archive, Rule, Volume
from quire.capabilities.speculation.config import SpeculativeConfig
from quire.capabilities.speculation.suffix import SuffixDrafter
from support.guessing import Place, Reference, Served, same

RULE = Rule(64, 16, 64, 2.0, 0.1)
ORDERS = (2, 4)
STORY = list(range(100, 140))
LAST_PAGE = (2**32 - 1) // 64 - 1


def drafter(**options: object) -> SuffixDrafter:
    return SuffixDrafter(SpeculativeConfig(**options))  # type: ignore[arg-type]


def name_of(number: int) -> bytes:
    return bytes([number]) * 16


def proposal_of(volume: Volume, text: list[int]) -> Proposal | None:
    guess = volume.guess(array("I", text), RULE, 16)
    return None if guess is None else Proposal(*guess[:3])


@settings(max_examples=60, deadline=None)
@given(
    writers=st.lists(st.integers(0, 1), min_size=1, max_size=4),
    pieces=st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.integers(0, 3), min_size=1, max_size=70)),
        max_size=12,
    ),
)
def test_drafts_are_those_of_brute_force(
    writers: list[int], pieces: list[tuple[int, list[int]]]
) -> None:
    archive = Archive(ORDERS, 2**20, 100)
    volumes = [Volume(archive, name_of(name), 0) for name in writers]
    texts: list[list[int]] = [[] for _ in writers]
    written: list[tuple[int, Place]] = []  # by whom, and where
    for number, piece in pieces:
        who = number % len(writers)
        text = texts[who]
        for token in piece:
            written.append((who, Place(text, len(text))))
            text.append(token)
        proposal = proposal_of(volumes[who], text)
        readable = [(w, place) for w, place in reversed(written) if writers[w] == writers[who]]
        assert same(proposal, expected(readable, who, text))


def expected(places: list[tuple[int, Place]], who: int, text: list[int]) -> Proposal | None:
    """Own places count among those that are looked at, but are not heard."""
    reference = Reference(ORDERS)
    for order in sorted(ORDERS, reverse=True):
        near = [(w, p) for w, p in places if p.agreement(text, order) == order][:64]
        others = [place for w, place in near if w != who]
        if others:
            return reference.guess(others, text, 16)
    return None


def test_outputs_help_each_other_as_they_grow_and_from_their_beginning() -> None:
    served = Served(drafter())
    first, second = served.begin([1, 2, 3, 4]), served.begin([9, 2, 3, 4])
    for token in STORY[:20]:
        served.ask(first)
        first[1].token_ids.append(token)
    served.ask(first)
    proposal = served.ask(second)
    assert proposal is not None and proposal.evidence == 3  # by the end of its prompt
    assert list(proposal.tokens) == STORY[: len(proposal.tokens)]
    second[1].token_ids.extend(STORY[:12])
    proposal = served.ask(second)
    assert proposal is not None and list(proposal.tokens) == STORY[12:20]


def test_the_last_step_of_an_output_is_learned_too() -> None:
    served = Served(drafter())
    one = served.begin([1, 2, 3])
    served.ask(one)
    one[1].token_ids.extend(STORY[:17])
    served.drafter.close(one[1].seq_id)
    assert served.drafts_after([7, *STORY[:9]]) == STORY[9:17]


def test_of_the_own_text_and_those_served_the_more_hopeful_is_told() -> None:
    longer, shorter = [*STORY[5:10], 77, 78], [STORY[9], 77, 78]
    for own, drafts in (longer, [77, 78]), (shorter, STORY[10:12]):
        served = Served(drafter(), most=2)
        served.serve([1], STORY[6:])
        assert served.drafts_after([*own, *STORY[5:10]]) == drafts


def test_only_the_same_salt_finds_them() -> None:
    served = Served(drafter())
    served.serve([1], STORY, cache_salt="mine")
    assert served.drafts_after(STORY[:8], cache_salt="mine") == STORY[8:24]
    assert served.drafts_after(STORY[:8], cache_salt="yours") == []
    assert served.drafts_after(STORY[:8]) == []


def test_nothing_is_drafted_from_one_output_into_the_next() -> None:
    served = Served(drafter())
    for number in range(5):
        served.serve([1], STORY[10 * number % 40 :][:10])
    for start in range(0, 30, 10):
        assert served.drafts_after([7, *STORY[start : start + 6]]) == STORY[start + 6 : start + 10]
        assert served.drafts_after([7, *STORY[start + 5 : start + 10]]) == []


def test_a_session_that_is_cut_joins_nothing_that_did_not_stand_together() -> None:
    served = Served(drafter())
    one = served.begin([1])
    served.ask(one)
    one[1].token_ids.extend(STORY[:6])
    served.ask(one)
    one[1].token_ids = array("I", STORY[20:26])
    one[1].token_ids.extend(STORY[26:30])
    served.ask(one)
    one[1].token_ids.extend(STORY[30:34])
    served.ask(one)
    served.drafter.close(one[1].seq_id)
    assert served.drafts_after([7, *STORY[:5]]) == STORY[5:6]
    assert served.drafts_after([7, *STORY[20:28]]) == STORY[28:34]


@pytest.mark.parametrize(
    "options",
    [{"suffix_decoding_cache_bytes": 0}, {"suffix_decoding_max_cached_requests": 0}],
)
def test_outputs_may_be_left_alone(options: dict[str, object]) -> None:
    served = Served(drafter(**options))
    served.serve([1], STORY)
    assert served.drafts_after(STORY[:8]) == []
    assert served.drafter.num_bytes == 0


def test_the_latest_outputs_are_kept() -> None:
    served = Served(drafter(suffix_decoding_max_cached_requests=3))
    served.serve([1], STORY)
    served.serve([1], [5])
    assert served.drafts_after(STORY[:8]) == STORY[8:24]
    assert served.drafts_after(STORY[:8]) == []  # the one that asked before was the third


@pytest.mark.parametrize("first_page", [1, LAST_PAGE - 40])
@pytest.mark.parametrize("num_bytes", [0, 5_000, 40_000])
def test_endless_traffic_takes_the_memory_given(num_bytes: int, first_page: int) -> None:
    archive, rng = Archive(ORDERS, num_bytes, 20, first_page), random.Random(num_bytes)
    size = archive.num_bytes
    told, found = {number: [] for number in range(4)}, 0  # type: dict[int, list[list[int]]], int
    for number in range(400):
        who, text = number % 4, list[int]()
        volume = Volume(archive, name_of(who), 0)
        told[who].append(text)
        base = 100 * who + 10 * (number % 3)
        for _ in range(rng.randint(1, 12)):
            text += [base + rng.randrange(3) for _ in range(rng.randint(1, 30))]
            guess = volume.guess(array("I", text), RULE, 16)
            if guess is not None:
                found += 1
                run = [*text[-guess[2] :], guess[0][0]]
                assert any(holds(other, run) for other in told[who][-20:])
    assert archive.num_bytes == size <= max(num_bytes, 3_000)
    assert found > 100 or num_bytes < 40_000


def holds(text: list[int], run: list[int]) -> bool:
    return any(text[i : i + len(run)] == run for i in range(len(text)))


def pages_of_two(*texts: list[int]) -> Archive:
    """The least there is: two pages of 64 tokens, for texts that all have one name."""
    archive = Archive(ORDERS, 0, 100)
    for text in texts:
        Volume(archive, name_of(1), 0).end(array("I", text), len(text))
    return archive


def asked(archive: Archive, tail: list[int], name: int = 1) -> Proposal | None:
    """By somebody of whom nothing is written."""
    return proposal_of(Volume(archive, name_of(name), len(tail)), tail)


def test_what_was_overwritten_is_not_heard_again() -> None:
    text = STORY[:20]
    archive = pages_of_two(*[text] * 9)
    reference = Reference(ORDERS).guess([Place(text, 10)] * 2, text[:10], 16)
    assert same(asked(archive, text[:10]), reference)


def test_a_match_goes_on_over_pages_as_far_as_they_are_its_own() -> None:
    text = list(range(100, 180))
    proposal = asked(pages_of_two(text), text[:70])
    assert proposal is not None and proposal.evidence == 64
    proposal = asked(pages_of_two(text), text[:60])
    assert proposal is not None and list(proposal.tokens) == text[60:76]
    # Now what the first page held stands there in another text.
    proposal = asked(pages_of_two(text, text[:64]), text[:70])
    assert proposal is not None and proposal.evidence == 6


def test_names_are_compared_where_their_keys_meet() -> None:
    archive = pages_of_two(STORY)
    assert asked(archive, STORY[:8]) is not None
    assert not any(asked(archive, STORY[:8], name) for name in range(2, 250))


@pytest.mark.parametrize("size", ["1MiB", "64MiB"])
def test_all_of_the_memory_is_told_and_most_of_it_is_used(size: str) -> None:
    one = drafter(suffix_decoding_cache_bytes=size)
    given = one.num_bytes
    for salt in range(300):  # without an end
        Served(one).serve([1, 2], STORY, cache_salt=f"{salt}")
    assert one.num_bytes == given
    assert 0.99 * 2**20 * int(size[:-3]) < given <= 2**20 * int(size[:-3])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_what_is_told_is_what_the_system_gave() -> None:
    """In a process of its own: nobody else asks for memory meanwhile."""
    asked = f"""
from quire.capabilities.speculation._native import Archive

def mapped():
    return 4096 * int(open("/proc/self/statm").read().split()[0])

before = mapped()
archive = Archive({ORDERS}, 2**28, 1)
assert abs(mapped() - before - archive.num_bytes) < 2**22
"""
    subprocess.run([sys.executable, "-c", asked], check=True)
