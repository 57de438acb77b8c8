"""How far a prompt has been computed, in streams that ask for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from quire.engine.outputs import Delta, PromptProgress, joined
from support.live_server import LiveServer, live_server

PROMPT = [5 + number % 200 for number in range(150)]
CHAT = {"messages": [{"role": "user", "content": "This is a test. " * 10}], "max_tokens": 4}
PROMPTS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 4},
    "/completion": {"prompt": PROMPT, "n_predict": 4},
}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server({"max_num_batched_tokens": 32}) as one:
        yield one


def stream(server: LiveServer, door: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = server.http.post(door, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.parametrize("door", PROMPTS)
def test_a_stream_begins_with_it_as_llama_cpp_tells_it(server: LiveServer, door: str) -> None:
    server.engine.scheduler.clear_contents()
    for again in (False, True):
        events = stream(server, door, PROMPTS[door] | {"return_progress": True})
        told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
        assert ["prompt_progress" in event for event in events[: len(told)]] == [True] * len(told)
        total, cached = told[0]["total"], told[0]["cache"]
        assert {(one["total"], one["cache"]) for one in told} == {(total, cached)}
        assert (cached > 0) is again
        processed = [one["processed"] for one in told]
        assert processed == sorted({*processed})
        assert (processed[0], processed[-1]) == (cached, total)
        if not again:
            assert processed == [*range(0, total, 32), total]
        assert all(one["time_ms"] >= 0 for one in told) and told[0]["time_ms"] == 0


@pytest.mark.parametrize("door", PROMPTS)
def test_who_does_not_ask_hears_nothing(server: LiveServer, door: str) -> None:
    assert all("prompt_progress" not in event for event in stream(server, door, PROMPTS[door]))
    assert not server.engine._followed
    whole = server.http.post(door, json=PROMPTS[door] | {"return_progress": True}).json()
    assert "prompt_progress" not in whole


def test_nothing_is_said_of_the_cache_where_that_is_kept_from_clients() -> None:
    with live_server(enable_prompt_tokens_details=False) as server:
        for door, body in PROMPTS.items():
            events = stream(server, door, body | {"return_progress": True})
            assert events and all("prompt_progress" not in event for event in events)


def test_tokens_are_gathered_and_progress_is_not() -> None:
    with live_server({"max_num_batched_tokens": 32}, stream_interval=3) as server:
        door = "/v1/completions"
        events = stream(server, door, PROMPTS[door] | {"return_progress": True, "max_tokens": 7})
        told = [one["prompt_progress"]["processed"] for one in events if "prompt_progress" in one]
        assert told == [0, 32, 64, 96, 128, 150]
        texts = [event for event in events if "prompt_progress" not in event]
        assert len(texts) == 3  # the first token, three together, and the last ones


def test_a_turn_of_a_session_tells_it_too(server: LiveServer) -> None:
    server.engine.scheduler.clear_contents()
    opened = server.http.post("/v1/sessions", json={}).json()
    path = f"/v1/sessions/{opened['id']}"
    for before, tokens in ((0, PROMPT), (152, PROMPT[:40])):  # the last of 3 is not computed yet
        server.http.post(f"{path}/append", json={"input": tokens}).raise_for_status()
        body = {"max_tokens": 3, "ignore_eos": True, "return_progress": True}
        events = stream(server, f"{path}/generate", body)
        told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
        assert (told[0]["processed"], told[-1]["processed"]) == (before, told[-1]["total"])
        assert {one["cache"] for one in told} == {before}


def test_deltas_that_are_joined_keep_progress_and_the_first_token() -> None:
    one, other = (PromptProgress(8, 0, done, 0.1) for done in (4, 8))
    nothing = Delta("r", 0, "", (), None, 0.1, False)
    token = nothing._replace(text="a", token_ids=(1,), first=True, seconds=0.5)
    told = joined([nothing._replace(progress=(one,)), nothing._replace(progress=(other,)), token])
    assert (told.progress, told.text, told.first, told.seconds) == ((one, other), "a", True, 0.5)
    assert [delta.token_ids for delta in told.singly()] == [(1,)]
    told = joined([nothing._replace(progress=(one,)), nothing._replace(progress=(other,))])
    assert told.progress == (one, other) and not told.token_ids
