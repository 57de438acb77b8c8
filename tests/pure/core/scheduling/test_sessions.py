"""Sessions live from turn to turn, whatever memory they have to give up in between."""

from __future__ import annotations

import pytest

from quire.capabilities.sessions import SessionVerb
from quire.core.errors import RequestError, SessionBusyError, UnknownSessionError
from quire.core.protocol import Verdict
from support.fake_model import FULL, Sight, expected_turn
from support.talks import Talk


def test_a_turn_computes_only_what_is_new() -> None:
    talk = Talk()
    talk.sessions.open("s")
    talk.say("s", list(range(1, 11)))
    talk.sessions.append("s", [1, 2])
    talk.sessions.append("s", [3])
    request = talk.turn("s")
    assert request.prompt_token_ids == (1, 2, 3)
    (chunk,) = talk.scheduler.schedule(0.0).chunks
    # The last token of the turn before was never an input of the model.
    assert (chunk.start, len(chunk.token_ids), chunk.output_start) == (15, 4, 19)


def test_a_session_goes_on_for_ever_in_a_fixed_number_of_blocks() -> None:
    talk = Talk(num_blocks=10, sight=Sight(9, 5))
    talk.sessions.open("s")
    for number in range(40):
        talk.say("s", [number] * ((number + 1) % 7), max_tokens=9)
    assert len(talk.sessions.get("s").history) > 400
    assert talk.width <= 10
    assert not any("idle" in decision for decision in talk.decisions)


@pytest.mark.parametrize("host_blocks", [0, 16])
def test_idle_sessions_give_way_and_come_back(host_blocks: int) -> None:
    talk = Talk(num_blocks=10, host_blocks=host_blocks)
    for name in ("a", "b"):
        talk.sessions.open(name)
        talk.say(name, list(range(10)))
    talk.add("other", list(range(20, 40)), 10)  # eight of ten blocks
    talk.steps()
    verb = "swap" if host_blocks else "recompute"
    given = [decision for decision in talk.decisions if decision.startswith(verb)]
    assert given[0].startswith(f"{verb} a: idle while other could not be let in")
    assert given[1].startswith(f"{verb} b: idle while other")
    talk.say("a", [1, 2, 3])
    talk.say("b", [4])


def test_the_longest_idle_gives_way_first_and_no_more_than_needed() -> None:
    talk = Talk(num_blocks=14)
    for first, name in enumerate(("a", "b", "c")):
        talk.sessions.open(name)
        talk.say(name, list(range(first, first + 10)))
    talk.say("a", [5])  # now b has been idle for longest
    talk.add("other", list(range(20, 32)), 2)
    talk.steps()
    idle = [decision.split(":")[0] for decision in talk.decisions if "idle while" in decision]
    assert idle == ["recompute b"]


def test_an_aborted_turn_leaves_what_it_was_given_and_gave() -> None:
    talk = Talk()
    talk.sessions.open("s")
    first = talk.say("s", list(range(1, 8)))
    talk.sessions.append("s", [9, 9])
    request = talk.turn("s", 10)
    wanted = expected_turn([*range(1, 8), *first, 9, 9], request, FULL)
    cut_short = talk.steps(3)[request.request_id]
    assert cut_short == wanted[:3]
    assert talk.scheduler.abort(request.request_id)
    assert not talk.scheduler.has_work
    assert list(talk.sessions.get("s").history) == [
        *range(1, 8), *first, 9, 9, *cut_short
    ]  # fmt: skip
    talk.say("s", [])


def test_a_failed_step_costs_the_turn_not_the_session() -> None:
    talk = Talk()
    talk.sessions.open("s")
    talk.say("s", list(range(1, 8)))
    talk.sessions.append("s", [3] * 6)
    request = talk.turn("s")
    step = talk.scheduler.schedule(0.0)
    talk.scheduler.invalidate(step)
    talk.scheduler.abort(request.request_id, invalid=True)
    session = talk.sessions.get("s")
    assert session.sequence.num_computed == 0
    talk.executor.poison(0, range(32))  # nothing of it may be found again
    talk.say("s", [4])
    request = talk.turn("s", 10)
    talk.steps(3)
    talk.scheduler.abort(request.request_id, invalid=True)
    assert session.sequence.num_computed == 0
    assert talk.scheduler.allocator.usage().used == 0


def test_cuts_and_recomputes() -> None:
    talk = Talk(sight=Sight(8, 3))
    talk.sessions.open("s")
    talk.say("s", list(range(1, 21)))
    talk.sessions.hard_cut("s")
    session = talk.sessions.get("s")
    assert (list(session.history), session.cache_epoch) == ([], 1)
    assert talk.scheduler.allocator.usage().used == 0
    with pytest.raises(RequestError, match="append something"):
        talk.turn("s")
    talk.say("s", list(range(30, 50)))
    history = list(session.history)
    talk.sessions.append("s", [7])
    talk.sessions.recompute("s", 10)
    assert list(session.history) == [*history[:3], *history[-9:], 7]
    assert session.input_token_ids == (7,)
    assert session.cache_epoch == 1
    talk.say("s", [])
    talk.sessions.recompute("s", 1000)
    assert len(session.history) == 3 + 10 + 6
    talk.say("s", [2])
    kinds = [event.what for event in session.events]
    turn = [SessionVerb.APPEND, SessionVerb.GENERATE, SessionVerb.END]
    assert kinds == [
        SessionVerb.OPEN,
        *turn,
        SessionVerb.HARD_CUT,
        *turn,
        SessionVerb.APPEND,
        SessionVerb.RECOMPUTE,
        *turn,
        SessionVerb.RECOMPUTE,
        *turn,
    ]
    assert [event.number for event in session.events] == list(range(len(kinds)))
    assert [event.num_tokens for event in session.events][:5] == [0, 20, 20, 26, 0]
    assert {event.cache_epoch for event in session.events[4:]} == {1}


def test_a_session_keeps_its_latest_events_only() -> None:
    talk = Talk()
    talk.sessions.open("s")
    for _ in range(3000):
        talk.sessions.append("s", [1])
    events = talk.sessions.get("s").events
    assert (len(events), events[-1].number, events[-1].num_tokens) == (1000, 3000, 3000)


def test_what_a_session_cannot_do_is_refused() -> None:
    talk = Talk(max_num_sessions=2)
    scheduler = talk.scheduler
    for name in ("s", "other"):
        talk.sessions.open(name)
    with pytest.raises(RequestError, match="max_num_sessions, 2, are open"):
        talk.sessions.open("third")
    talk.sessions.end("other")
    with pytest.raises(RequestError, match="already open"):
        talk.sessions.open("s")
    for verb in (
        lambda: talk.sessions.append("other", [1]),
        lambda: talk.sessions.hard_cut("other"),
        lambda: talk.sessions.recompute("other", 1),
        lambda: talk.sessions.end("other"),
        lambda: talk.turn("other"),
    ):
        with pytest.raises(UnknownSessionError, match="session other is not open"):
            verb()
    with pytest.raises(RequestError, match="last_n must be at least 1"):
        talk.sessions.recompute("s", 3)
    talk.sessions.append("s", [1, 2])
    with pytest.raises(RequestError, match="last_n must be at least 1"):
        talk.sessions.recompute("s", 0)
    for params, field in (
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"use_beam_search": True, "beam_width": 2}, "use_beam_search"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
    ):
        with pytest.raises(RequestError) as refused:
            talk.turn("s", **params)
        assert refused.value.field == field
    with pytest.raises(RequestError, match="201 tokens can never fit"):
        talk.turn("s", 200)
    assert scheduler.stats.decisions[Verdict.REFUSE.value] == 5
    talk.turn("s")
    for verb in (
        lambda: talk.sessions.append("s", [1]),
        lambda: talk.sessions.hard_cut("s"),
        lambda: talk.sessions.recompute("s", 1),
        lambda: talk.sessions.end("s"),
        lambda: talk.turn("s"),
    ):
        with pytest.raises(SessionBusyError, match="has a turn under way, t7"):
            verb()


def test_a_turn_stands_in_line_by_when_it_came() -> None:
    talk = Talk()
    talk.sessions.open("s")
    for number in range(3):
        talk.add(f"r{number}", [1, 2, 3])
    talk.sessions.append("s", [5])
    turn = talk.turn("s")
    talk.add("late", [1, 2, 3])
    names = [group.request.request_id for group in talk.scheduler.waiting]
    assert names == ["r0", "r1", "r2", turn.request_id, "late"]
