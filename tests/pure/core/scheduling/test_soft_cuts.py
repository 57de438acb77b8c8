"""Soft cuts: what they add to whom, whose blocks are whose, and where they go."""

from __future__ import annotations

import math
from typing import Any

import pytest

from quire.core.errors import RequestError, SessionBusyError
from quire.core.memory import hash_blocks
from quire.core.protocol import SoftCut, column_biases
from quire.core.scheduling.sequence import Sequence
from support.fake_model import Sight
from support.talks import Talk

TOKENS = list(range(1, 31))


@pytest.mark.parametrize("bias", [0.0, -0.01, -2.0, -50.0, -math.inf])
@pytest.mark.parametrize("fade", [0, 1, 7])
def test_what_came_before_falls_evenly_to_its_last_share(bias: float, fade: int) -> None:
    cut = SoftCut(2, 10, bias, fade)
    assert [cut.at(position) for position in (0, 9)] == [0, 0]
    for since in range(20):
        gone = 1.0 if since >= fade else since / fade
        share = 1 - gone * (1 - math.exp(bias))
        assert math.exp(cut.at(10 + since)) == pytest.approx(share, rel=1e-12)


def test_cuts_add_up_and_sinks_keep_their_weight() -> None:
    cuts = [SoftCut(2, 10, -1.0, 0), SoftCut(2, 15, -math.inf, 10), SoftCut(2, 20, -0.5, 0)]
    assert column_biases(cuts, 9) == [(2, 0), (10, 0), (15, 0), (20, 0)]
    half = math.log(0.5)
    assert column_biases(cuts, 20) == [(2, 0), (10, -1.5 + half), (15, -0.5 + half), (20, -0.5)]
    assert column_biases(cuts, 25)[1:] == [(10, -math.inf), (15, -math.inf), (20, -0.5)]


def names(cuts: list[SoftCut], *, piece: int = 30) -> list[bytes]:
    """Of the blocks of TOKENS, which come so many at a time."""
    sequence = Sequence(0, 0, ())
    for first in range(0, 30, piece):
        sequence.token_ids.extend(TOKENS[first : first + piece])
        sequence.cuts = tuple(cut for cut in cuts if cut.position <= len(sequence.token_ids))
        sequence.hash_blocks(4)
    return sequence.block_hashes


def test_blocks_have_other_names_from_the_cut_on() -> None:
    plain = hash_blocks(b"", TOKENS, 4)
    assert names([]) == plain
    others = [
        [SoftCut(0, 8, -1.0, 5)],
        [SoftCut(0, 9, -1.0, 5)],
        [SoftCut(1, 9, -1.0, 5)],
        [SoftCut(0, 9, -1.5, 5)],
        [SoftCut(0, 9, -1.0, 6)],
        [SoftCut(0, 9, -1.0, 5)] * 2,
        [SoftCut(0, 9, -1.0, 5), SoftCut(0, 10, -1.0, 5)],
        [SoftCut(0, 9, -1.0, 5), SoftCut(0, 20, -1.0, 5)],
    ]
    found = [names(cuts) for cuts in others]
    assert all(len(one) == len(plain) and one[:2] == plain[:2] for one in found)
    assert len({one[-1] for one in [plain, *found]}) == len(others) + 1
    assert found[-1][:5] == found[1][:5]
    assert len({one[2] for one in [plain, *found[:-1]]}) == len(others)
    for cuts, one in zip(others, found, strict=True):
        assert names(cuts, piece=1) == names(cuts, piece=7) == one


def test_only_who_has_the_same_cuts_finds_what_comes_after_them() -> None:
    talk = Talk()
    starts = {}
    for name, cut in (
        ("first", (10, -1.0, 3)),
        ("same", (10, -1.0, 3)),
        ("none", None),
        ("zero", (10, 0.0, 3)),
        ("softer", (10, -0.5, 3)),
        ("sooner", (8, -1.0, 3)),
        ("longer", (10, -1.0, 4)),
    ):
        talk.sessions.open(name)
        rest = TOKENS
        if cut is not None:
            position, bias, fade = cut
            talk.sessions.append(name, TOKENS[:position])
            talk.sessions.soft_cut(name, bias, fade)
            rest = TOKENS[position:]
        talk.decisions.clear()
        talk.say(name, rest)
        starts[name] = next(d.split(" of ")[0] for d in talk.decisions if "cached" in d)
    found = {name: int(text.split()[-1]) for name, text in starts.items()}
    assert found == {
        "first": 0, "same": 28, "none": 8, "zero": 28, "softer": 8, "sooner": 8, "longer": 8,
    }  # fmt: skip


def test_cuts_go_where_their_tokens_go() -> None:
    talk = Talk(sight=Sight(12, 3))
    sessions = talk.sessions
    sessions.open("s")
    sessions.append("s", TOKENS[:10])
    sessions.soft_cut("s", -1.0, 50)
    talk.say("s", TOKENS[10:20], max_tokens=4)  # 24
    sessions.soft_cut("s", -2.0, 0)
    session = sessions.get("s")
    assert session.soft_cuts == (SoftCut(3, 10, -1.0, 50), SoftCut(3, 24, -2.0, 0))
    talk.say("s", [7], max_tokens=2)  # 27
    sessions.recompute("s", 18)  # 3 + 18 of 27: six are gone
    assert session.soft_cuts == (SoftCut(3, 4, -1.0, 50), SoftCut(3, 18, -2.0, 0))
    talk.say("s", [8], max_tokens=2)  # 24
    sessions.recompute("s", 20)  # what comes after the first cut, and three sinks
    assert session.soft_cuts == (SoftCut(3, 17, -2.0, 0),)
    talk.say("s", [9], max_tokens=2)
    sessions.hard_cut("s")
    assert session.soft_cuts == ()
    talk.say("s", TOKENS)


@pytest.mark.parametrize(
    ("bias", "fade", "field"),
    [
        (0.5, 0, "bias"),
        (math.inf, 0, "bias"),
        (math.nan, 0, "bias"),
        ("-1", 0, "bias"),
        (False, 0, "bias"),
        (-1.0, -1, "fade"),
        (-1.0, 2**31, "fade"),
        (-1.0, 1.0, "fade"),
        (-1.0, True, "fade"),
    ],
)
def test_what_is_no_cut_is_refused_by_name(bias: Any, fade: Any, field: str) -> None:
    talk = Talk()
    talk.sessions.open("s")
    talk.sessions.append("s", TOKENS)
    ranges = {"bias": "from -inf to 0", "fade": "from 0 to 2,147,483,647"}
    with pytest.raises(RequestError, match=f"{field} must be .*{ranges[field]}") as refused:
        talk.sessions.soft_cut("s", bias, fade)
    assert refused.value.field == field
    assert talk.sessions.get("s").soft_cuts == ()


def test_when_there_can_be_no_cut() -> None:
    talk = Talk(num_blocks=64, sight=Sight(12, 3))
    sessions = talk.sessions
    sessions.open("s")
    for tokens in ([], [1, 2, 3]):
        sessions.append("s", tokens)
        with pytest.raises(RequestError, match=f"the history has {len(tokens)} tokens, of which 3"):
            sessions.soft_cut("s", -1.0, 0)
    sessions.append("s", [4])
    for _ in range(64):
        sessions.soft_cut("s", -0.1, 9)
    with pytest.raises(RequestError, match="64 soft cuts, which is the most"):
        sessions.soft_cut("s", -0.1, 9)
    talk.say("s", [5])
    sessions.append("s", [6])
    talk.turn("s")
    with pytest.raises(SessionBusyError):
        sessions.soft_cut("s", -0.1, 9)
