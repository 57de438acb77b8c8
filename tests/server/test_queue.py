"""A full queue, a wait that lasts too long, and clients that share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from quire.core.protocol import SchedulingPolicy, Verdict
from support.live_server import MODEL, LiveServer, eventually, live_server


@contextmanager
def held(**options: Any) -> Iterator[LiveServer]:
    """A server whose one place is taken by a request that does not get on; idle in the end."""
    with live_server({"max_num_seqs": 1, **options}) as server, busy(server):
        yield server


@contextmanager
def busy(server: LiveServer) -> Iterator[None]:
    server.executor.hold()
    with in_background(lambda: server.complete(prompt=[5] * 9, max_tokens=200)):
        eventually(lambda: server.engine.scheduler.num_running_seqs == 1)
        try:
            yield
        finally:
            server.executor.release()
    eventually(server.is_idle)


@contextmanager
def in_background(ask: Callable[[], Any]) -> Iterator[list[Any]]:
    """What is asked is answered, at the latest in the end."""
    answers: list[Any] = []
    client = threading.Thread(target=lambda: answers.append(ask()))
    client.start()
    yield answers
    client.join(20)
    assert answers


def waiting(server: LiveServer, count: int) -> None:
    """Let so many wait in line, which needs the step under way to end."""
    server.step_until(lambda: server.engine.scheduler.queue.num_new == count)


def expired(server: LiveServer, count: int) -> None:
    """Let so many wait for too long; they are told with the step that was planned then."""
    decisions = server.engine.scheduler.stats.decisions
    server.step_until(lambda: decisions["expire"] == count)
    server.executor.let(steps=1)


def test_a_full_queue_is_told_with_429_and_when_to_come_again() -> None:
    with held(max_num_waiting=2) as server:
        with in_background(lambda: server.complete(prompt=[[6] * 3, [7] * 3], max_tokens=2)) as two:
            waiting(server, 2)
            with pytest.raises(openai.RateLimitError) as caught:
                server.openai.completions.create(model=MODEL, prompt="more", max_tokens=2)
            error = caught.value
            assert error.code == "queue_full" and error.type == "rate_limit_error"
            assert 1 <= int(error.response.headers["retry-after"]) <= 600
            assert "2 requests wait, and max_num_waiting is 2" in error.message
            chat = server.chat(max_tokens=2, stream=True)
            assert (chat.status_code, chat.json()["error"]["code"]) == (429, "queue_full")
            assert server.metric("quire:queue_full_total") == 2
            assert server.num_aborted == 0, "they have never been requests"
            server.executor.release()
        assert two[0].status_code == 200
        assert server.complete(prompt="room again", max_tokens=2).status_code == 200


def test_a_post_of_many_prompts_waits_as_a_whole_or_not_at_all() -> None:
    with held(max_num_waiting=3) as server:
        with in_background(lambda: server.complete(prompt=[[6] * 3, [7] * 3], max_tokens=2)):
            waiting(server, 2)
            refused = server.complete(prompt=[[8] * 3, [9] * 3], max_tokens=2)
            assert refused.status_code == 429
            assert server.engine.scheduler.queue.num_new == 2
            assert server.metric("quire:queue_full_total") == 2
            server.executor.release()
        never = server.complete(prompt=[[8]] * 4, max_tokens=2)
        assert never.status_code == 400
        assert never.json()["error"]["param"] == "prompt"
        assert "max_num_waiting, 3" in never.json()["error"]["message"]
        assert server.complete(prompt=[[8]] * 3, max_tokens=2).status_code == 200


def test_prompts_that_wait_are_bounded_by_their_tokens_too() -> None:
    """Posts of many long prompts are few requests, and much memory."""
    with held() as server:
        room = server.engine.waiting_room
        room.max_tokens = 250
        post = {"prompt": [[6] * 20] * 5, "max_tokens": 2}
        with (
            in_background(lambda: server.complete(**post)) as first,
            in_background(lambda: server.complete(**post)) as second,
        ):
            waiting(server, 10)
            assert server.engine.scheduler.queue.num_new_tokens == 200
            refused = server.complete(**post)
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "queue_full"
            assert "200 tokens, and there is memory for 250" in refused.json()["error"]["message"]
            assert 1 <= int(refused.headers["retry-after"]) <= 600
            chat = server.chat(messages=[{"role": "user", "content": "x " * 60}], max_tokens=2)
            assert chat.status_code == 429
            text = server.complete(prompt=["x " * 30, "y " * 30], max_tokens=2)
            assert text.status_code == 429, "once its tokens are known"
            assert server.engine.scheduler.queue.num_new == 10 and room._tokens_coming == 0
            server.executor.release()
        assert first[0].status_code == second[0].status_code == 200
        assert server.engine.scheduler.queue.num_new_tokens == 0
        assert server.complete(**post).status_code == 200
        never = server.complete(prompt=[[6] * 60] * 5, max_tokens=2)
        assert never.status_code == 400 and never.json()["error"]["param"] == "prompt"
        assert "at most 250 tokens together" in never.json()["error"]["message"]


def test_a_chat_is_refused_before_it_is_tokenized() -> None:
    with held(max_num_waiting=1) as server:
        with in_background(lambda: server.complete(prompt=[6] * 3, max_tokens=2)):
            waiting(server, 1)
            server.engine.input_processor.begin_chat = None  # type: ignore[assignment, method-assign]
            assert server.chat().status_code == 429
            del server.engine.input_processor.begin_chat  # type: ignore[method-assign]
            assert server.engine.waiting_room._coming == 0
            server.executor.release()
        assert server.chat(max_tokens=2).status_code == 200


def test_turns_of_sessions_count_as_well() -> None:
    with live_server({"max_num_seqs": 1, "max_num_waiting": 1}) as server:
        opened = server.http.post("/v1/sessions", json={"model": MODEL}).json()
        path = f"/v1/sessions/{opened['id']}"
        assert server.http.post(f"{path}/append", json={"input": [5, 6]}).status_code == 200
        with busy(server), in_background(lambda: server.complete(prompt=[6] * 3, max_tokens=2)):
            waiting(server, 1)
            refused = server.http.post(f"{path}/generate", json={"max_tokens": 2})
            assert refused.status_code == 429
            assert not server.http.get(path).json()["busy"]
            server.executor.release()
        assert server.http.post(f"{path}/generate", json={"max_tokens": 2}).status_code == 200
        server.http.delete(path)


@pytest.mark.parametrize("stream", [False, True])
def test_who_waits_too_long_gets_503_even_for_a_stream(stream: bool) -> None:
    with held(max_queue_time=0.6) as server:
        ask = {"prompt": [[6] * 3, [7] * 3], "max_tokens": 2, "stream": stream}
        with in_background(lambda: server.complete(**ask)) as answers:
            expired(server, 2)
        (answer,) = answers
        assert answer.status_code == 503
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "queue_timeout")
        assert "max_queue_time is 0.6 s" in error["message"]
        assert 1 <= int(answer.headers["retry-after"]) <= 600
        assert server.metric("quire:queue_timeout_total") == 2
        assert server.metric("quire:decisions_total", verdict="expire") == 2


def test_openais_client_takes_a_timeout_for_a_server_that_is_busy() -> None:
    with held(max_queue_time=0.6) as server:
        errors: list[openai.APIStatusError] = []

        def ask() -> None:
            try:
                server.openai.completions.create(model=MODEL, prompt=[6] * 3, max_tokens=2)
            except openai.InternalServerError as error:
                errors.append(error)

        with in_background(ask):
            expired(server, 1)
        assert [error.code for error in errors] == ["queue_timeout"]


def test_users_share_under_the_fair_policy() -> None:
    with held(policy=SchedulingPolicy.FAIR) as server:
        ask: dict[str, Any] = {"max_tokens": 2}
        many = [[6 + number] * 9 for number in range(8)]
        with in_background(lambda: server.complete(prompt=many, user="hog", **ask)):
            waiting(server, 8)
            with in_background(lambda: server.complete(prompt=[5] * 9, user="light", **ask)):
                waiting(server, 9)
                assert server.metric("quire:num_clients_waiting") == 2
                server.executor.release()
        decisions = server.engine.decisions()
        admitted = [d.request_id[:-2] for d in decisions if d.what is Verdict.ADMIT][1:]
        (light,) = {name for name in admitted if admitted.count(name) == 1}
        assert admitted.index(light) <= 1


def test_a_user_of_any_length_but_an_absurd_one() -> None:
    with live_server() as server:
        assert server.complete(prompt="hello", max_tokens=1, user="u" * 256).status_code == 200
        refused = server.complete(prompt="hello", max_tokens=1, user="u" * 257)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "user"
        assert server.chat(max_tokens=1, user="u" * 257).json()["error"]["param"] == "user"
