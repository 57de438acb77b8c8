"""What a stream sends, and when: a chunk a token, and what comes together in one write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import chain
from typing import Any

import pytest
from starlette.types import Message

from quire.core.errors import EngineError
from quire.engine.delivery import OutputCollector
from quire.http.answers.streaming import EventStream
from support.live_server import LiveServer, events, live_server

FOX = "🦊 and 漢字"  # whose first character takes several tokens
HELLO = [{"role": "user", "content": "hello"}]


def texts(chunks: list[Any]) -> list[str]:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return [
        choice["delta"]["content"] if "delta" in choice else choice["text"] for choice in choices
    ]


def test_every_token_has_a_chunk_even_if_its_text_is_not_complete(server: LiveServer) -> None:
    tokens = server.script(FOX)
    ask = {"max_tokens": len(tokens), "stream": True}
    completion = texts(events(server.complete(prompt="Once", **ask)))
    opening, *chat = texts(events(server.chat(**ask)))
    session = server.http.post("/v1/sessions", json={"model": "demo"}).json()["id"]
    server.http.post(f"/v1/sessions/{session}/append", json={"input": "Once"})
    turn = texts(events(server.http.post(f"/v1/sessions/{session}/generate", json=ask)))
    server.http.delete(f"/v1/sessions/{session}")
    assert opening == "" and len(completion) == len(tokens)
    assert completion == chat == turn
    assert completion[0] == "" and "".join(completion) == FOX


@pytest.mark.parametrize("chat", [False, True])
def test_the_first_chunk_comes_with_the_first_token(server: LiveServer, chat: bool) -> None:
    server.script(FOX)
    server.executor.hold()
    ask = {"model": "demo", "max_tokens": 9, "stream": True}
    messages = [{"role": "user", "content": "hello"}]
    path, prompt = ("chat/completions", {"messages": messages}) if chat else ("completions", {})
    server.executor.let(steps=1)
    body = ask | (prompt or {"prompt": "Once"})
    with server.http.stream("POST", f"/v1/{path}", json=body) as response:
        lines = response.iter_lines()
        chunk = json.loads(next(lines).removeprefix("data: "))
        assert server.executor.num_steps == 1
        assert texts([chunk]) == [""] and chunk["choices"][0]["finish_reason"] is None
        server.executor.release()
        assert list(lines)[-2] == "data: [DONE]"


def sent(*batches: list[Any] | Exception) -> list[Message]:
    """What a stream of these values sends."""
    messages: list[Message] = []

    async def values() -> AsyncGenerator[list[Any], None]:
        for batch in batches:
            if isinstance(batch, Exception):
                raise batch
            yield batch

    async def receive() -> Message:
        raise AssertionError("a stream has nothing to receive")

    async def send(message: Message) -> None:
        messages.append(message)

    asyncio.run(EventStream(values())({"type": "http", "path": "/v1/completions"}, receive, send))
    return messages


def test_what_comes_together_is_sent_together() -> None:
    start, *bodies = sent([{"n": 1}], [{"n": 2}, {"text": "é\n"}])
    assert (b"content-type", b"text/event-stream; charset=utf-8") in start["headers"]
    assert [body["body"].decode() for body in bodies] == [
        'data: {"n":1}\n\n',
        'data: {"n":2}\n\ndata: {"text":"é\\n"}\n\n',
        "data: [DONE]\n\n",
    ]
    assert [body["more_body"] for body in bodies] == [True, True, False]


def test_an_error_before_anything_is_raised_and_one_after_it_is_the_last_event() -> None:
    with pytest.raises(EngineError):
        sent(EngineError("lost"))
    *_, last = sent([{"n": 1}], EngineError("lost"))
    assert json.loads(last["body"].decode().removeprefix("data: "))["error"]["message"] == "lost"
    assert last["more_body"] is False


DOORS: dict[str, tuple[dict[str, Any], Callable[[list[Any]], list[str]]]] = {
    "/v1/completions": ({"prompt": "Once", "max_tokens": 9}, texts),
    "/v1/chat/completions": (
        {"messages": HELLO, "max_tokens": 9},
        lambda chunks: texts(chunks)[1:],
    ),
    "/v1/responses": (
        {"input": "hello", "max_output_tokens": 9},
        lambda told: _grown(told, "response.output_text.delta"),
    ),
    "/v1/messages": (
        {"messages": HELLO, "max_tokens": 9},
        lambda told: [one["delta"]["text"] for one in told if one["type"] == "content_block_delta"],
    ),
    "/api/generate": (
        {"prompt": "hello", "raw": True, "options": {"num_predict": 9}},
        lambda told: _told(told, "response"),
    ),
    "/completion": ({"prompt": "hello", "n_predict": 9}, lambda told: _told(told, "content")),
}


def _grown(told: list[Any], kind: str) -> list[str]:
    return [one["delta"] for one in told if one["type"] == kind]


def _told(told: list[Any], field: str) -> list[str]:
    return [one[field] for one in told if one[field]]


@pytest.fixture(scope="module")
def gathering() -> Iterator[LiveServer]:
    with live_server(stream_interval=4) as server:
        yield server


@pytest.mark.parametrize("path", DOORS)
def test_tokens_that_are_gathered_add_up_at_every_door(gathering: LiveServer, path: str) -> None:
    tokens = gathering.script("one two three four five six seven eight nine ten")
    texts_of = [gathering.tokenizer.decode([token]) for token in tokens]
    ask, read = DOORS[path]
    body = {"model": "demo", "stream": True, **ask}
    answer = gathering.http.post(path, json=body)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    told = [json.loads(line) for line in lines if line.startswith("{")]
    assert read(told) == ["".join(texts_of[a:b]) for a, b in ((0, 1), (1, 5), (5, 9))]


@pytest.mark.parametrize("path", DOORS)
def test_who_gets_an_answer_whole_is_told_when_it_has_ended(
    gathering: LiveServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathering.script("one two three four five six seven eight nine ten")
    intervals: list[int | None] = []

    class Noted(OutputCollector):
        def __init__(self, interval: int | None) -> None:
            intervals.append(interval)
            super().__init__(interval)

    monkeypatch.setattr("quire.engine.async_engine.OutputCollector", Noted)
    for stream in (False, True):
        body = {"model": "demo", "stream": stream, **DOORS[path][0]}
        assert gathering.http.post(path, json=body).status_code == 200
    assert intervals == [None, 4]


def test_gathered_tokens_have_all_that_was_asked_for(gathering: LiveServer) -> None:
    tokens = gathering.script("one two three four five six seven eight nine ten")
    ask = {"prompt": "Once", "max_tokens": 30, "n": 2, "stop": [" six"], "logprobs": 1,
           "return_token_ids": True}  # fmt: skip
    whole = gathering.complete(**ask).json()
    streamed = gathering.complete(**ask, stream=True, stream_options={"include_usage": True})
    *chunks, last = events(streamed)
    for index in range(2):
        choices = [one for chunk in chunks for one in chunk["choices"] if one["index"] == index]
        alone = whole["choices"][index]
        assert "".join(one["text"] for one in choices) == alone["text"] == "one two three four five"
        assert [token for one in choices for token in one["token_ids"]] == alone["token_ids"]
        assert alone["token_ids"] == tokens[: len(alone["token_ids"])]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            pieces = (one["logprobs"][name] for one in choices if one["logprobs"])
            assert [*chain.from_iterable(pieces)] == alone["logprobs"][name]
        assert [len(one["token_ids"]) for one in choices][:2] == [1, 4]
        assert [one["finish_reason"] for one in choices][-1] == alone["finish_reason"] == "stop"
        assert choices[-1]["stop_reason"] == " six"
    assert last["usage"] == whole["usage"]


def test_a_turn_of_a_session_is_gathered_too(gathering: LiveServer) -> None:
    gathering.script("one two three four five six seven eight nine ten")
    session = gathering.http.post("/v1/sessions", json={"model": "demo"}).json()["id"]
    gathering.http.post(f"/v1/sessions/{session}/append", json={"input": "Once"})
    ask = {"max_tokens": 9, "stream": True}
    turn = texts(events(gathering.http.post(f"/v1/sessions/{session}/generate", json=ask)))
    gathering.http.delete(f"/v1/sessions/{session}")
    assert len(turn) == 3
    assert (
        "".join(turn)
        == gathering.complete(prompt="Once", max_tokens=9).json()["choices"][0]["text"]
    )


def test_a_first_token_is_not_gathered(gathering: LiveServer) -> None:
    gathering.script("one two three four")
    gathering.executor.hold()
    gathering.executor.let(steps=1)
    body = {"model": "demo", "prompt": "Once", "max_tokens": 4, "stream": True}
    with gathering.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        assert texts([json.loads(next(lines).removeprefix("data: "))]) == ["one"]
        assert gathering.executor.num_steps
        gathering.executor.release()
        assert list(lines)[-2] == "data: [DONE]"
