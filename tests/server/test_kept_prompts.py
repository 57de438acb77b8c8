"""Hints of which prompts come again: Anthropic's breakpoints and OpenAI's cache keys."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.protocol import Request
from quire.http.chats.kept_prompts import Mark, found_in
from support.live_server import LiveServer, live_server

SYSTEM = "You are an agent that has read all there is to read about the house and its garden."
EPHEMERAL = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
ALL = 2**40


def user(text: str, control: Any = None) -> dict[str, Any]:
    block = {"type": "text", "text": text} | ({"cache_control": control} if control else {})
    return {"role": "user", "content": [block]}


def kept(server: LiveServer, door: str, body: dict[str, Any]) -> list[tuple[int, float]]:
    """What a request asked to keep."""
    seen: list[Request] = []
    add = server.engine.scheduler.add

    def spied(request: Request) -> Any:
        seen.append(request)
        return add(request)

    server.engine.scheduler.add = spied  # type: ignore[method-assign]
    try:
        answer = server.http.post(door, json=body)
        assert answer.status_code == 200, answer.text
    finally:
        server.engine.scheduler.add = add  # type: ignore[method-assign]
    (request,) = seen
    return [*request.keep]


def test_breakpoints_keep_what_stands_before_them(shared: LiveServer) -> None:
    system = [{"type": "text", "text": SYSTEM, "cache_control": HOUR}]
    messages = [user("Is it old?"), {"role": "assistant", "content": "Yes."}, user("How old?")]
    body = {"system": system, "messages": messages, "max_tokens": 1}
    ((tokens, seconds),) = kept(shared, "/v1/messages", body)
    template = f"<|system|>{SYSTEM}"
    known = len(shared.tokenizer.encode(template, add_special_tokens=False))
    assert known - 4 <= tokens <= known and seconds == 3600
    messages[-1] = user("How old?", EPHEMERAL)
    both = kept(shared, "/v1/messages", body)
    assert sorted(both) == [(tokens, 3600), (ALL, 300)]
    both = kept(
        shared,
        "/v1/messages",
        {**body, "system": [], "messages": messages[-1:], "cache_control": HOUR},
    )
    assert sorted(both) == [(ALL, 300), (ALL, 3600)]
    assert kept(shared, "/v1/messages", {"messages": [user("How old?")], "max_tokens": 1}) == []


def test_usage_is_counted_to_the_last_breakpoint() -> None:
    with live_server() as server:
        system = [{"type": "text", "text": SYSTEM, "cache_control": HOUR}]
        body = {"system": system, "messages": [user("Is it old?")], "max_tokens": 1}
        first, again = (server.http.post("/v1/messages", json=body).json()["usage"] for _ in "ab")
        counts = "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"
        rest, written, found = (first[name] for name in counts)
        assert found == 0 and written > 20 and 0 < rest < 20
        assert again["cache_creation_input_tokens"] == 0
        assert sum(again[name] for name in counts) == rest + written
        whole = {**body, "messages": [user("Is it young, or what?", EPHEMERAL)]}
        usage = server.http.post("/v1/messages", json=whole).json()["usage"]
        assert usage["input_tokens"] == 0 and usage["cache_creation_input_tokens"] > 0
        plain = {"messages": [user("Who?")], "max_tokens": 1}
        usage = server.http.post("/v1/messages", json=plain).json()["usage"]
        assert usage["cache_creation_input_tokens"] == 0 < usage["input_tokens"]


def test_openai_s_fields(shared: LiveServer) -> None:
    chat: dict[str, Any] = {"messages": [user("Is it old?")], "max_tokens": 1}
    for door, body in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"prompt": "Is it old?", "max_tokens": 1}),
        ("/v1/responses", {"input": "Is it old?", "max_output_tokens": 1}),
    ):
        for fields, expected in (
            ({}, []),
            ({"prompt_cache_key": "a"}, [(ALL, 300)]),
            ({"prompt_cache_key": "a", "prompt_cache_retention": "24h"}, [(ALL, 86400)]),
            ({"prompt_cache_retention": "in_memory"}, [(ALL, 300)]),
        ):
            assert kept(shared, door, {**body, **fields}) == expected
    parts = [
        {"role": "system", "content": [{"type": "text", "text": SYSTEM, "cache_control": HOUR}]},
        user("Is it old?"),
    ]
    ((tokens, seconds),) = kept(
        shared, "/v1/chat/completions", {"messages": parts, "max_tokens": 1}
    )
    assert 10 < tokens < 100 and seconds == 3600


def test_a_text_that_does_not_stand_in_the_prompt_keeps_nothing(shared: LiveServer) -> None:
    tokenizer = shared.tokenizer
    prompt = tokenizer.encode(SYSTEM)
    assert (
        found_in([Mark("Something else that is long enough to be found", 300)], prompt, tokenizer)
        == []
    )
    assert found_in([Mark("a", 300)], prompt, tokenizer) == []
    assert found_in([Mark(SYSTEM, 300)], prompt, tokenizer)[0][0] >= len(prompt) - 2
    assert found_in([], prompt, tokenizer) == []


@pytest.mark.parametrize("hinted", [False, True])
def test_a_hinted_system_prompt_outlives_the_crowd(hinted: bool) -> None:
    with live_server({"num_blocks": 120}) as server:
        block = {"type": "text", "text": SYSTEM} | ({"cache_control": HOUR} if hinted else {})

        def ask(question: str) -> Any:
            body = {"system": [block], "messages": [user(question)], "max_tokens": 1}
            answer = server.http.post("/v1/messages", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["usage"]["cache_read_input_tokens"]

        ask("Is it old?")
        for number in range(6):
            server.complete(prompt=[(number * 7 + i) % 200 + 5 for i in range(200)], max_tokens=1)
        assert (ask("Who lives there?") >= 20) is hinted
