"""What ``make attack`` is made of, against a live server."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from attacks.attack import completion
from attacks.catalogue import ATTACKS, named
from attacks.innocent import Chunks, text_of
from attacks.observer import Observation
from attacks.report import judge, row
from attacks.shutdown import Shutdown
from attacks.storm import Life
from attacks.target import LEFT, Address, Limits, Target, find_limits, status_of
from attacks.victim import Holdings
from attacks.watch import Watch, watching
from support.live_server import MAX_MODEL_LEN, MODEL, LiveServer, eventually, live_server

LIMITS = Limits(MODEL, MAX_MODEL_LEN, 2**20)


def address(server: LiveServer) -> Address:
    return "127.0.0.1", server.server.port


def target(server: LiveServer, seconds: float = 0.3) -> Target:
    return Target(address(server), LIMITS, seconds)


@pytest.mark.parametrize(
    "name",
    ["malformed HTTP", "random bytes", "halves of characters", "a number of a million digits"],
)
def test_an_attack_hears_what_it_may_and_leaves_nothing(shared: LiveServer, name: str) -> None:
    attacker = target(shared)
    named(name).run(attacker)
    assert named(name).unexpected(list(attacker.answers)) == []
    assert attacker.answers.keys() - {LEFT}, "nothing was answered"
    eventually(shared.is_idle)


def test_answers_that_should_not_come_are_findings() -> None:
    assert named("random bytes").unexpected(["400", "500", LEFT, "429"]) == ["500"]


def test_no_two_attacks_have_one_name() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)


def test_the_limits_are_what_the_server_says() -> None:
    with live_server(max_body_bytes=123_456) as server:
        assert find_limits(address(server)) == Limits(MODEL, MAX_MODEL_LEN, 123_456)


def test_the_most_that_is_allowed_is_found(shared: LiveServer) -> None:
    attacker = target(shared, seconds=60.0)  # a refusal that comes later is taken for none
    most = shared.engine.scheduler.batch.max_num_seqs
    assert attacker.most(lambda n: completion(attacker, n=n), up_to=300) == most
    assert attacker.most(lambda n: completion(attacker, n=n), up_to=3) == 3
    assert attacker.most(lambda n: completion(attacker, prompt=7), up_to=300) == 1
    assert attacker.time_left == 60.0, "looking does not count"


def test_a_stream_that_stands_still_is_seen_while_it_does(server: LiveServer) -> None:
    server.executor.hold()
    with watching(address(server), LIMITS) as watch:
        server.executor.let(steps=3)
        eventually(lambda: sees(watch) and watch.plain.longest_gap() > 0.3)
        assert watch.plain.texts() == []
        server.executor.release()
        watch.begin()
        eventually(lambda: sees(watch) and len(watch.plain.texts()) > 2)
        assert len(set(watch.plain.texts())) == 1 and watch.plain.texts()[0]
        assert watch.plain.num_chunks > 2


def test_a_silent_server_is_seen_while_it_is() -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as silent,
        watching(silent.getsockname(), LIMITS) as watch,
    ):
        eventually(
            lambda: (
                watch.health.worst_health() > 0.3
                and all(stream.slowest_start() > 0.3 for stream in watch.streams)
            )
        )
        assert watch.plain.longest_gap() == watch.guided.longest_gap() == 0.0


def sees(watch: Watch) -> bool:
    watch.take_in()
    return watch.plain.has_seen(Chunks, 0.0) or watch.num_begun > 0


def stream(*values: str) -> bytes:
    return b"".join(b"data: %b\n\n" % value.encode() for value in values)


def chunk(text: str, finish_reason: str = "null") -> str:
    return f'{{"choices": [{{"text": "{text}", "finish_reason": {finish_reason}}}]}}'


def test_a_text_is_that_of_a_stream_which_ended_as_it_should() -> None:
    whole = [chunk("a"), chunk("b", '"length"'), "[DONE]"]
    assert text_of(stream(*whole)) == "ab"
    assert text_of(stream(*whole[:-1])) is None
    assert text_of(stream(chunk("a"), '{"error": {}}')) is None
    assert text_of(stream(chunk("a", '"stop"'), "[DONE]")) is None
    assert text_of(b"") is None


FINE = Observation(
    name="a calm one", answers={"200": 3, LEFT: 9}, unexpected=(), health=0.03, gap=0.3,
    guided=0.2, steps=0.1, first_chunk=0.5, peak_rss=2**20, taken=1.5, others=0.0, texts=2,
    wrong_texts=0, recovered=True,
)  # fmt: skip
HELD = Holdings(rss=1000, threads=9, files=20)
ENDED = Shutdown(0, 8, 8, seconds=4.0, bound=35.0)
LIVED = Life(HELD, HELD, slots_held=0, tracebacks=0, recovered=True, shutdown=ENDED)


def missed(observation: Observation, life: Life = LIVED) -> int:
    return sum(not verdict.met for verdict in judge([FINE, observation], [life]))


def test_a_server_that_is_not_hurt_meets_every_goal() -> None:
    assert missed(FINE) == 0
    assert "✗" not in row(FINE) and "200.0 ms" in row(FINE) and LEFT not in row(FINE)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"health": 0.06}, "✗ 60.0 ms"),
        ({"gap": 0.4}, "✗ 300.0 ms"),
        ({"guided": 0.5}, "✗ 400.0 ms"),
        ({"unexpected": ["500"]}, "✗ answered 500"),
        ({"wrong_texts": 1}, "✗ 1 of 2 streams"),
        ({"recovered": False}, "✗ did not recover"),
    ],
)
def test_an_attack_that_hurts_misses_a_goal(change: dict[str, Any], told: str) -> None:
    hurt = replace(FINE, **change)
    assert missed(hurt) == 1
    assert told in row(hurt)


@pytest.mark.parametrize(
    "change",
    [
        {"after": HELD._replace(rss=1101)},
        {"after": HELD._replace(files=60)},
        {"slots_held": 16},
        {"tracebacks": 1},
        {"shutdown": ENDED._replace(status=-15)},
        {"shutdown": ENDED._replace(finished=7)},
        {"shutdown": ENDED._replace(status=None, seconds=35.0)},
        {"shutdown": ENDED._replace(seconds=35.1)},
        {"recovered": False, "shutdown": Shutdown(None, 0, 0, 35.0, 35.0)},
        {"recovered": False, "shutdown": Shutdown(-11, 0, 0, 0.0, 35.0)},
    ],
)
def test_a_server_that_keeps_something_or_ends_badly_misses_a_goal(change: dict[str, Any]) -> None:
    assert missed(FINE, replace(LIVED, **change)) == 1


def test_a_server_that_has_not_recovered_is_to_end_in_time() -> None:
    assert missed(FINE, replace(LIVED, recovered=False, shutdown=ENDED)) == 0


def test_a_refusal_is_short() -> None:
    head = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    assert status_of(head + b"a" * 4096) == "400"
    assert status_of(head + b"a" * 4097) == "400 at length"
    assert status_of(head.replace(b"400", b"200") + b"a" * 4097) == "200"


def test_no_goal_is_for_what_attacks_are_measured_against() -> None:
    assert missed(replace(FINE, health=9.0, gap=9.0, steps=None)) == 0
