"""The gateway among replicas that answer as they are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from starlette.types import Message

from quire.core.errors import QueueTimeoutError
from quire.http.config.server import ServerConfig
from quire.http.errors import EngineUnavailableError
from quire_cluster.calls import ReplicaCall, Whole
from quire_cluster.gateway import Gateway, make_gateway
from quire_cluster.routing import Hint

GONE = EngineUnavailableError("the replica is gone")
STREAM, LINES, JSON = "text/event-stream; charset=utf-8", "application/x-ndjson", "application/json"


def start(media_type: str = JSON, status: int = 200) -> Message:
    headers = [(b"content-type", media_type.encode()), (b"x-request-id", b"theirs"),
               (b"access-control-allow-origin", b"theirs"), (b"x-own", b"kept")]  # fmt: skip
    return {"type": "http.response.start", "status": status, "headers": headers}


def said(content: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


class Scripted:
    """Answers with what it is given, and remembers what it was asked."""

    def __init__(self, *answer: Message | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[ReplicaCall, Hint]] = []
        self.all: list[Whole] = []
        self.left = False
        self.hold = asyncio.Event()
        self.hold.set()

    async def ask(self, call: ReplicaCall, hint: Hint) -> AsyncGenerator[list[Message], None]:
        self.asked.append((call, hint))
        try:
            for each in self.answer:
                await self.hold.wait()
                if isinstance(each, Exception):
                    raise each
                yield [each]
        except (asyncio.CancelledError, GeneratorExit):
            self.left = True
            raise

    async def ask_all(self, call: ReplicaCall) -> list[Whole]:
        return self.all


def gateway(replicas: Scripted, **config: Any) -> Gateway:
    return make_gateway(replicas, ServerConfig(**config), frozenset({"tuned"}))


async def _post(app: Any, path: str, **content: Any) -> httpx.Response:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost"
    ) as client:
        method = content.pop("method", "POST")
        return await client.request(method, path, **content)


def post(app: Any, path: str = "/v1/completions", **content: Any) -> httpx.Response:
    return asyncio.run(_post(app, path, **content))


def test_what_is_sent_and_what_comes_back() -> None:
    replicas = Scripted(start(), said(b"{}"))
    headers = {"x-request-id": "mine", "x-other": "kept"}
    answer = post(gateway(replicas), "/v1/chat/completions?a=b", content=b'{"x"', headers=headers)
    assert (answer.status_code, answer.text, answer.headers["x-own"]) == (200, "{}", "kept")
    # What ours puts around answers is not there twice; and ids are told by Ray's proxy.
    assert answer.headers.get_list("access-control-allow-origin") == []
    assert "x-request-id" not in answer.headers
    ((call, hint),) = replicas.asked
    assert (call.scope["path"], call.scope["query_string"], call.body) == (
        "/v1/chat/completions", b"a=b", b'{"x"',
    )  # fmt: skip
    sent = dict(call.scope["headers"])
    assert (sent[b"x-request-id"], sent[b"x-other"]) == (b"mine", b"kept")
    assert len(sent) == len(call.scope["headers"])
    assert hint == Hint()


def test_prompts_are_told_apart_by_all_that_keeps_blocks_apart() -> None:
    replicas = Scripted(start(), said(b"{}"))
    app = gateway(replicas, api_key=["one", "other"])
    long, keys = "x" * 999, ["one", "other"]
    asked = [
        ({"prompt": long}, "one"), ({"prompt": long, "model": "a-name-of-it"}, "one"),
        ({"prompt": long, "model": "tuned"}, "one"), ({"prompt": long, "cache_salt": "s"}, "one"),
        ({"prompt": long}, "other"),
    ]  # fmt: skip
    for body, key in asked:
        post(app, json=body, headers={"authorization": f"Bearer {key}"})
    first, same, *others = (hint.prefix.pieces[0] for _, hint in replicas.asked)
    assert first == same
    assert len({first, *others}) == 4 and len(keys) == 2


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(GONE, 503, "engine_unavailable"), (QueueTimeoutError("none", 1.5), 503, "queue_timeout")],
)
def test_a_replica_that_is_gone_before_it_answers(error: Exception, status: int, code: str) -> None:
    answer = post(gateway(Scripted(error)), json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers.get("retry-after") == ("2" if code == "queue_timeout" else None)


@pytest.mark.parametrize(
    ("path", "media_type", "last"),
    [
        ("/v1/chat/completions", STREAM, 'data: {"error":{"message":"the replica is gone"'),
        ("/v1/messages", STREAM, 'event: error\ndata: {"type":"error","error":{"type":"overloaded'),
        (
            "/v1/responses",
            STREAM,
            'event: error\ndata: {"message":"the replica is gone","type":"error"',
        ),
        ("/completion", STREAM, 'data: {"error":{"code":503'),
        ("/api/chat", LINES, '{"error":"the replica is gone"}\n'),
    ],
)
def test_a_replica_that_is_gone_in_mid_stream(path: str, media_type: str, last: str) -> None:
    replicas = Scripted(start(media_type), said(b"begun\n\n", more=True), GONE)
    answer = post(gateway(replicas), path, json={})
    assert answer.text.startswith(f"begun\n\n{last}")
    assert "[DONE]" not in answer.text


def test_half_an_answer_that_is_no_stream_is_broken_off() -> None:
    with pytest.raises(EngineUnavailableError):
        post(gateway(Scripted(start(JSON), said(b"{", more=True), GONE)), json={})


def test_refused_before_any_replica_is_asked() -> None:
    replicas = Scripted(start(), said(b"{}"))
    app = gateway(replicas, api_key=["key"], max_body_bytes=100)
    assert post(app, json={}).status_code == 401
    bearer = {"authorization": "Bearer key"}
    assert post(app, content=b" " * 101, headers=bearer).status_code == 413
    app.drain.begun = True
    assert post(app, json={}, headers=bearer).json()["error"]["code"] == "shutting_down"
    assert post(app, "/health", method="GET").status_code == 503
    assert not replicas.asked
    assert post(app, "/v1/models", method="GET", headers=bearer).status_code == 200


def test_who_leaves_is_not_answered_on() -> None:
    async def scenario() -> None:
        replicas = Scripted(start(STREAM), said(b"never", more=True))
        replicas.hold.clear()
        request = asyncio.create_task(_post(gateway(replicas), "/v1/completions", json={}))
        while not replicas.asked:
            await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait([request])
        assert replicas.left

    asyncio.run(scenario())


def test_what_all_replicas_say_together() -> None:
    replicas = Scripted()
    metrics = '# HELP a_total Text.\n# TYPE a_total counter\na_total{{m="x"}} {}\nb {}\n'
    replicas.all = [Whole("r1", 200, metrics.format(1, 2).encode()),
                    Whole("r2", 200, metrics.format(3, 4).encode(), "prefill")]  # fmt: skip
    text = post(gateway(replicas), "/metrics", method="GET").text
    assert text == (
        "# HELP a_total Text.\n# TYPE a_total counter\n"
        'a_total{replica="r1",m="x"} 1\nb{replica="r1"} 2\n'
        'a_total{replica="r2",role="prefill",m="x"} 3\nb{replica="r2",role="prefill"} 4\n'
    )
    replicas.all = [Whole(name, 200, json.dumps({"data": [name], "server_load": 2}).encode())
                    for name in ("r1", "r2")]  # fmt: skip
    listed = post(gateway(replicas), "/v1/sessions", method="GET").json()
    assert listed == {"object": "list", "data": ["r1", "r2"]}
    assert post(gateway(replicas), "/load", method="GET").json() == {"server_load": 4}
    assert post(gateway(replicas), "/reset_prefix_cache").content == b""
    assert not replicas.asked
    replicas.all[1] = Whole("r2", 404, b'{"error": {}}')
    assert post(gateway(replicas), "/load", method="GET").status_code == 404
