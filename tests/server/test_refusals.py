"""Every request that cannot be served is refused in OpenAI's shape, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from typing import Any

import httpx
import openai
import pytest

from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from support.live_server import (
    MAX_MODEL_LEN,
    MODEL,
    LiveServer,
    eventually,
    live_server,
    scripted_engine,
)

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def refusal(response: httpx.Response) -> tuple[int, str | None]:
    """The status and the error's param; the rest of its shape is checked."""
    (error,) = response.json().values()
    assert set(response.json()) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    expected = "invalid_request_error" if response.status_code < 500 else "server_error"
    assert error["type"] == expected
    return response.status_code, error["param"]


# What is wrong, and the field that must be named.
WRONG_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": 10**30}, "n"),
    ({"n": 17}, "n"),  # max_num_seqs is 16
    ({"seed": 2**70}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 2}, "max_completion_tokens"),  # a chat's
    ({"min_tokens": 17}, "min_tokens"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logprobs": 101}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"logit_bias": {"one": 1}}, "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"1": "much"}}, "logit_bias.1"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": "\ud800"}, "stop"),
    ({"bad_words": ["\ud800"]}, "bad_words"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["fine", ""]}, "prompt"),
    ({"prompt": ["text", 5]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [10**9]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": "\ud800"}, "prompt"),
    ({"prompt": [5] * 256}, "prompt"),
    ({"prompt": [[5]] * 2049}, "prompt"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_all": 1}}, "stream_options.include_all"),
    ({"stream": True, "include_metrics": True}, "include_metrics"),
    ({"stream": True, "echo": True, "logprobs": 1}, "echo"),
    ({"best_of": 0}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"temprature": 1}, "temprature"),
    ({"max_completion_tokens": 3}, "max_completion_tokens"),
]
IMAGE = [{"type": "image_url", "image_url": {"url": "data:"}}]
WRONG_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": IMAGE}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
    ({"messages": [{"role": "user", "content": "long " * 600}]}, "messages"),
    ({"max_tokens": 9, "max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 101}, "top_logprobs"),
    ({"logprobs": 2}, "logprobs"),
    ({"tools": [{"type": "function", "function": {"name": "f f"}}]}, "tools[0].function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"store": "yes"}, "store"),
    ({"metadata": ["a"]}, "metadata"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"prompt": "x"}, "prompt"),
    ({"echo": 1}, "echo"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a": "\ud800"}}, "chat_template_kwargs"),
    ({"\ud800": 1}, "\\ud800"),
]


@pytest.mark.parametrize(("body", "param"), WRONG_COMPLETIONS, ids=lambda value: str(value)[:40])
def test_a_wrong_completion_names_its_field(
    shared: LiveServer, body: dict[str, Any], param: str
) -> None:
    content = json.dumps({"model": MODEL, "prompt": "Once", **body})
    headers = {"content-type": "application/json"}
    assert refusal(shared.http.post(COMPLETIONS, content=content, headers=headers)) == (400, param)


@pytest.mark.parametrize(("body", "param"), WRONG_CHATS, ids=lambda value: str(value)[:40])
def test_a_wrong_chat_names_its_field(shared: LiveServer, body: dict[str, Any], param: str) -> None:
    messages = [{"role": "user", "content": "hello"}]
    content = json.dumps({"model": MODEL, "messages": messages, **body})
    headers = {"content-type": "application/json"}
    assert refusal(shared.http.post(CHAT, content=content, headers=headers)) == (400, param)


def test_a_field_that_does_nothing_is_refused_in_words(shared: LiveServer) -> None:
    message = shared.complete(prompt="x", temprature=1).json()["error"]["message"]
    assert message == "field temprature is not supported by Quire; did you mean temperature?"
    message = shared.chat(audio={"voice": "x"}).json()["error"]["message"]
    assert message.startswith("field audio is not supported by Quire: texts")


@pytest.mark.parametrize(
    "body",
    [b"{", b"", b"[]", b'"text"', b"null", b"\xff\xfe\xfd", b'{"model": "\xff"}', b"[" * 100_000],
    ids=["cut", "empty", "list", "string", "null", "bytes", "invalid-utf8", "deep"],
)
def test_a_body_that_is_no_json_object_is_a_bad_request(shared: LiveServer, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    assert refusal(shared.http.post(COMPLETIONS, content=body, headers=headers)) == (400, None)


def test_a_body_of_another_type_is_a_bad_request(shared: LiveServer) -> None:
    body = {"model": MODEL, "prompt": "x"}
    assert refusal(shared.http.post(COMPLETIONS, data=body)) == (400, None)


def test_missing_fields_are_named(shared: LiveServer) -> None:
    assert refusal(shared.http.post(COMPLETIONS, json={"model": MODEL})) == (400, "prompt")
    assert refusal(shared.http.post(CHAT, json={"model": MODEL})) == (400, "messages")


def test_unknown_models_routes_and_methods(shared: LiveServer) -> None:
    for path in (COMPLETIONS, CHAT):
        body = {"model": "gpt-9", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
        body.pop("messages" if path == COMPLETIONS else "prompt")
        response = shared.http.post(path, json=body)
        assert refusal(response) == (404, "model")
        assert response.json()["error"]["code"] == "model_not_found"
    assert refusal(shared.http.get("/v1/models/gpt-9")) == (404, "model")
    assert refusal(shared.http.get("/v1/nothing")) == (404, None)
    assert refusal(shared.http.post("/v1/moderations", json={})) == (404, None)
    wrong_method = shared.http.get(COMPLETIONS)
    assert refusal(wrong_method) == (405, None) and wrong_method.headers["allow"] == "POST"


def test_openai_s_client_raises_its_own_errors(shared: LiveServer) -> None:
    with pytest.raises(openai.NotFoundError):
        shared.openai.completions.create(model="gpt-9", prompt="x")
    with pytest.raises(openai.BadRequestError) as caught:
        shared.openai.completions.create(model=MODEL, prompt="x", suffix="y")
    assert caught.value.param == "suffix"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refused", [[7] * MAX_MODEL_LEN, [7] * 40])  # by their length, by the pool
def test_one_refused_prompt_refuses_all_before_any_runs(stream: bool, refused: list[int]) -> None:
    with live_server({"num_blocks": 8}) as server:  # 32 tokens
        response = server.complete(prompt=[[5, 6], refused, [8, 9]], max_tokens=9, stream=stream)
        assert refusal(response) == (400, "prompt")
        eventually(server.is_idle)
        assert server.executor.num_steps == 0 and server.num_aborted == 0
        assert server.complete(prompt="Once").status_code == 200


def test_a_request_that_the_pool_can_never_hold_is_refused() -> None:
    with live_server({"num_blocks": 8}) as server:  # 32 tokens
        assert refusal(server.complete(prompt=[5] * 40)) == (400, "prompt")
        assert refusal(server.complete(prompt=[5] * 9, max_tokens=30)) == (400, "max_tokens")
        assert refusal(server.complete(prompt=[5] * 4, max_tokens=15, n=9)) == (400, "n")
        assert refusal(server.chat(messages=[{"role": "user", "content": "x " * 90}])) == (
            400, "messages",
        )  # fmt: skip
        assert server.complete(prompt=[5] * 9, max_tokens=20).status_code == 200


def test_a_body_too_large_is_refused_while_it_is_read() -> None:
    with live_server(max_body_bytes=1000) as server:
        assert refusal(server.complete(prompt="x" * 1000)) == (413, None)
        assert server.complete(prompt="x " * 100).status_code == 200

        # In chunks, or with a promise of more: the answer does not wait for what never comes.
        for framing, start in (
            ("Transfer-Encoding: chunked", b"FFFF\r\n"),
            ("Content-Length: 9999999", b""),
        ):
            with socket.create_connection(("127.0.0.1", server.server.port), 10) as connection:
                head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost"
                head += "\r\nContent-Type: application/json"
                connection.sendall(f"{head}\r\n{framing}\r\n\r\n".encode() + start + b"x" * 2000)
                assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
        assert server.complete(prompt="x").status_code == 200


def test_a_body_too_large_is_refused_in_however_small_pieces_it_comes() -> None:
    app = create_app(scripted_engine()[0], [MODEL], ServerConfig(max_body_bytes=1000))
    headers = [(b"content-type", b"application/json"), (b"transfer-encoding", b"chunked")]
    scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": headers}
    pieces = itertools.count()
    refused_at: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * 100, "more_body": next(pieces) < 100}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 413
            refused_at.append(next(pieces))

    asyncio.run(app({**scope, "query_string": b""}, receive, send))
    (number,) = refused_at
    assert number < 20
