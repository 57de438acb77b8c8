"""Streams that have nothing to say yet: they show that they are alive, and break nothing by it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from quire.http.config.server import ServerConfig
from support.live_server import MODEL, LiveServer, eventually, live_server
from support.speaking import TEMPLATE

CHAT = [{"role": "user", "content": "x"}]
COMMENT, PING = b": keep-alive\n\n", b'event: ping\ndata: {"type":"ping"}\n\n'
DOORS: list[tuple[str, dict[str, Any], bytes]] = [
    ("/v1/completions", {"prompt": "x"}, COMMENT),
    ("/v1/chat/completions", {"messages": CHAT}, COMMENT),
    ("/v1/responses", {"input": "x"}, COMMENT),
    ("/v1/messages", {"messages": CHAT, "max_tokens": 9}, PING),
    ("/api/generate", {"prompt": "x"}, b" "),
    ("/api/chat", {"messages": CHAT}, b" "),
    ("/completion", {"prompt": "x"}, COMMENT),
]
NAMES = [path for path, _, _ in DOORS]


@pytest.fixture(scope="module")
def _watchful() -> Iterator[LiveServer]:
    options = {"chat_template": TEMPLATE, "num_blocks": 512}
    with live_server(options, sse_keep_alive_interval=0.1) as server:
        yield server


@pytest.fixture
def watchful(_watchful: LiveServer) -> Iterator[LiveServer]:
    _watchful.script("Foxes run.")
    _watchful.executor.hold()
    yield _watchful
    _watchful.executor.fail = lambda step: None
    _watchful.executor.release()
    eventually(_watchful.is_idle)


def values(text: str) -> list[dict[str, Any]]:
    """What a client makes of a stream: comments, pings and space are nothing to it."""
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    found = [json.loads(line) for line in lines if line.lstrip().startswith("{")]
    return [one for one in found if one.get("type") != "ping"]


def said(told: list[dict[str, Any]]) -> str:
    """The text of a stream of any of the doors, of its deltas alone."""
    found: list[Any] = []
    for one in told:
        if isinstance(one.get("type"), str) and not one["type"].endswith("delta"):
            continue
        delta = one.get("delta") or {}
        found += [delta, one.get("response"), one.get("content")]
        for inner in (delta, one.get("message"), *one.get("choices", ())):
            if isinstance(inner, dict):
                found += [inner.get("text"), inner.get("content")]
                found += [inner.get("delta", {}).get("content")]
    return "".join(text for text in found if isinstance(text, str))


@pytest.mark.parametrize(("path", "body", "sign"), DOORS, ids=NAMES)
def test_it_shows_before_the_first_token_and_between_two(
    watchful: LiveServer, path: str, body: dict[str, Any], sign: bytes
) -> None:
    asked = {"model": MODEL, "stream": True, **body}
    with watchful.http.stream("POST", path, json=asked) as answer:
        assert answer.status_code == 200
        chunks = answer.iter_raw()
        first = next(chunks)
        assert not first.replace(sign, b""), "not a token has been computed"
        watchful.executor.let(steps=1)
        received = first
        while not said(values(received.decode())):
            received += next(chunks)
        while not received.endswith(sign * 2):
            received += next(chunks)
        watchful.executor.release()
        whole = received + b"".join(chunks)
    assert said(values(whole.decode())) == "Foxes run."


@pytest.mark.parametrize(("path", "body", "sign"), DOORS, ids=NAMES)
def test_an_error_after_it_is_the_last_event(
    watchful: LiveServer, path: str, body: dict[str, Any], sign: bytes
) -> None:
    def fail(step: object) -> None:
        raise RuntimeError("planted")

    asked = {"model": MODEL, "stream": True, **body}
    with watchful.http.stream("POST", path, json=asked) as answer:
        chunks = answer.iter_raw()
        received = next(chunks)
        watchful.executor.fail = fail
        watchful.executor.release()
        received += b"".join(chunks)
    *_, last = values(received.decode())
    assert "the step that computed this request failed" in json.dumps(last)
    assert b"[DONE]" not in received


@pytest.mark.parametrize(("path", "body", "sign"), DOORS, ids=NAMES)
def test_an_error_before_it_has_its_status_and_a_whole_answer_is_as_it_was(
    watchful: LiveServer, path: str, body: dict[str, Any], sign: bytes
) -> None:
    texts = {name: "word " * 300 for name in ("prompt", "input") if name in body}
    chats = {"messages": [{"role": "user", "content": "word " * 300}]} if "messages" in body else {}
    long = {"model": MODEL, **body, **texts, **chats}
    if path.startswith("/api"):
        long["truncate"] = False
    refused = watchful.http.post(path, json={**long, "stream": True})
    assert refused.status_code == 400 and refused.headers["content-type"] == "application/json"
    watchful.executor.release()
    whole = watchful.http.post(path, json={"model": MODEL, **body, "stream": False})
    assert whole.content.startswith(b"{") and whole.content.endswith(b"}")


def test_openai_s_client_reads_over_it(watchful: LiveServer) -> None:
    stream = watchful.openai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True
    )
    watchful.executor.let(steps=1)
    chunks = [next(stream)]
    watchful.executor.release()
    chunks += [*stream]
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == "Foxes run."
    watchful.executor.hold()
    failing = watchful.openai.responses.create(model=MODEL, input="x", stream=True)

    def fail(step: object) -> None:
        raise RuntimeError("planted")

    watchful.executor.fail = fail
    watchful.executor.release()
    assert [event.type for event in failing] == ["error"]


def test_llama_cpp_s_clients_may_ask_for_none(watchful: LiveServer) -> None:
    asked = {"prompt": "x", "stream": True, "sse_ping_interval": -1}
    watchful.executor.release()
    assert b"keep-alive" not in watchful.http.post("/completion", json=asked).content
    wrong = watchful.http.post("/completion", json={**asked, "sse_ping_interval": -2})
    assert wrong.status_code == 400


def test_who_leaves_in_a_silence_is_let_go(watchful: LiveServer) -> None:
    aborted = watchful.num_aborted
    asked = {"model": MODEL, "prompt": "x", "stream": True}
    with watchful.http.stream("POST", "/v1/completions", json=asked) as answer:
        next(answer.iter_raw())
    eventually(lambda: not watchful.server._drain.running)  # it is known that nobody waits
    watchful.executor.release()
    eventually(lambda: watchful.num_aborted == aborted + 1)


def test_it_shows_after_some_seconds_unless_told_otherwise() -> None:
    assert 0 < ServerConfig().sse_keep_alive_interval < 30
    with live_server(sse_keep_alive_interval=0) as server:
        whole = httpx.post(
            f"{server.url}/v1/completions", json={"model": MODEL, "prompt": "x", "stream": True}
        )
        assert b"keep-alive" not in whole.content
