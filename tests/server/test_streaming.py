"""What a stream sends, and when: a chunk a token, and what comes together in one write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.types import Message

from quire.errors import EngineError
from quire.server.answers.streaming import EventStream, Json
from support.live_server import LiveServer, events

FOX = "🦊 and 漢字"  # whose first character takes several tokens


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


def sent(*batches: list[Json] | Exception) -> list[Message]:
    """What a stream of these values sends."""
    messages: list[Message] = []

    async def values() -> AsyncGenerator[list[Json], None]:
        for batch in batches:
            if isinstance(batch, Exception):
                raise batch
            yield batch

    async def receive() -> Message:
        raise AssertionError("a stream has nothing to receive")

    async def send(message: Message) -> None:
        messages.append(message)

    asyncio.run(EventStream(values())({"type": "http"}, receive, send))
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
