"""Bodies that are too large, too slow, too many or hostile: refused at once, to nobody's harm."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.http.config.server import ServerConfig
from quire.http.guards import bodies
from quire.http.guards.bodies import Bodies, default_max_body_bytes
from quire.http.openai.requests import ChatRequest, CompletionRequest, TurnRequest
from quire.http.sessions import AppendRequest, OpenRequest, RecomputeRequest
from support.hostile_values import HOSTILE, HUGE
from support.live_server import (
    MAX_MODEL_LEN,
    MODEL,
    PATIENCE,
    LiveServer,
    live_server,
    scripted_engine,
)

COMPLETIONS = "/v1/completions"
RUNS = os.environ.get("QUIRE_RANDOM_RUNS")
JSON = {"content-type": "application/json"}


class HalfSent:
    """A request on a socket of its own, of whose body only some is sent."""

    def __init__(self, server: LiveServer, *headers: str, path: str = COMPLETIONS) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.server.port), PATIENCE)
        lines = [
            f"POST {path} HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
            *headers,
        ]
        self.socket.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode())

    def __enter__(self) -> HalfSent:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def send(self, content: bytes) -> None:
        self.socket.sendall(content)

    def read_to_the_end(self) -> tuple[int, bytes, dict[str, Any]]:
        """Status, headers and error of an answer after which the connection is closed."""
        answer = b""
        while chunk := self.socket.recv(2**16):
            answer += chunk
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"connection: close" in head
        return int(head.split()[1]), head, json.loads(body)["error"]


# -- hostile values ----------------------------------------------------------------------------

CHAT = [{"role": "user", "content": "x"}]
ROUTES: list[tuple[str, dict[str, Any], Any]] = [
    (COMPLETIONS, {"model": MODEL, "prompt": "x"}, CompletionRequest),
    ("/v1/chat/completions", {"model": MODEL, "messages": CHAT}, ChatRequest),
    ("/v1/sessions", {"model": MODEL}, OpenRequest),
    ("/v1/sessions/{}/append", {"input": "x"}, AppendRequest),
    ("/v1/sessions/{}/recompute", {"last_n": 1}, RecomputeRequest),
    ("/v1/sessions/{}/generate", {}, TurnRequest),
]
ALLOWED = {("prompt", "text"), ("input", "text"), ("stop", "text")}  # the engine bounds these
ALLOWED |= {("chat_template_kwargs", "object")}
ALLOWED |= {
    *((name, what) for name in ("guided_json", "json_schema") for what in ("object", "entries")),
    ("guided_regex", "text"),
}  # what they say is looked at later


def is_of_both(kind: Any, name: str) -> bool:
    """Whether a field of chats is one of completions, read alike."""
    own = kind.model_fields.get(name)
    other = CompletionRequest.model_fields.get(name)
    return kind is ChatRequest and own is not None and repr(own) == repr(other)


@pytest.fixture
def session(shared: LiveServer) -> Iterator[str]:
    session_id = shared.http.post("/v1/sessions", json={"model": MODEL}).json()["id"]
    yield session_id
    shared.http.delete(f"/v1/sessions/{session_id}")


@pytest.mark.parametrize(("path", "body", "kind"), ROUTES, ids=lambda value: str(value)[:40])
def test_a_hostile_value_of_any_field_is_refused_in_few_words(
    shared: LiveServer, session: str, path: str, body: dict[str, Any], kind: Any
) -> None:
    opening = json.dumps(body)[:-1] + (", " if body else "")
    for place, name in enumerate([*kind.model_fields, "unknown", "u" * HUGE, "\ud800" * 1000]):
        for number, (what, value) in enumerate(HOSTILE.items()):
            if (name, what) in ALLOWED:
                continue
            if is_of_both(kind, name) and (place + number) % 3 and not RUNS:
                continue  # the same reader of the field gets them at the other door
            content = f"{opening}{json.dumps(name)}: {value}}}"
            answer = shared.http.post(path.format(session), content=content, headers=JSON)
            error = answer.json()["error"]
            assert 400 <= answer.status_code < 500, (name, what, error)
            assert len(error["message"]) < 600 and len(answer.content) < 1500, (name, what)
            assert error["param"], (name, what, error)
            field = error["param"].split("[")[0].split(".")[0]
            assert field == name or len(name) > 200, (name, what, error)
            assert field[:20] == ascii(name)[1:21].rstrip("'"), (name, what, error)


def test_an_integer_of_any_size_is_refused_by_name(shared: LiveServer, session: str) -> None:
    numbers = itertools.cycle([10**4000, -(10**4000), 2**2000])
    for path, body, kind in ROUTES:
        for name, number in zip(kind.model_fields, numbers, strict=False):
            if name in {"top_k", "max_completion_tokens"} or (kind, name) == (TurnRequest, "model"):
                continue  # the first has no bound, the second's is the first complaint of another
            answer = shared.http.post(path.format(session), json={**body, name: number})
            assert answer.status_code == 400, (name, answer.text)
            assert answer.json()["error"]["param"] == name


def test_unknown_names_are_shown_in_short(shared: LiveServer) -> None:
    for answer in (
        shared.complete(model="m" * HUGE, prompt="x"),
        shared.http.get("/v1/models/" + "m" * 10_000),
    ):
        assert answer.status_code == 404
        assert len(answer.json()["error"]["message"]) < 300


# -- what one request may ask for --------------------------------------------------------------


def test_choices_are_bounded_together(shared: LiveServer) -> None:
    error = shared.complete(prompt=[[5]] * 2048, n=3).json()["error"]
    assert error["param"] == "n" and "2,048 times 3" in error["message"]


def test_logprobs_are_bounded_together(shared: LiveServer) -> None:
    many = [[5]] * 500
    for body, field in (
        ({"prompt": many, "logprobs": 100, "max_tokens": 200}, "logprobs"),
        ({"prompt": many, "logprobs": 100, "max_tokens": None, "stream": True}, "logprobs"),
        ({"prompt": [[5] * 200] * 500, "prompt_logprobs": 100, "max_tokens": 1}, "prompt_logprobs"),
    ):
        body["max_tokens"] = body["max_tokens"] or MAX_MODEL_LEN - 1
        error = shared.complete(**body).json()["error"]
        assert error["param"] == field and "at most 4,194,304" in error["message"]
    scored = {"prompt_logprobs": 100}  # by how long prompts are, not by how long they may be
    assert shared.complete(prompt=many, logprobs=100, max_tokens=1, **scored).status_code == 200


def test_a_large_answer_is_made_off_the_event_loop(
    shared: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quire.http.openai.answers import Account

    def noting(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return account(*arguments)

    threads: list[str] = []
    account = Account.of
    monkeypatch.setattr(Account, "of", noting)
    shared.complete(prompt="x")
    shared.complete(prompt="x", logprobs=1)
    shared.complete(prompt=[[5]] * 17)
    shared.complete(prompt="x", stream=True, stream_options={"include_usage": True})
    assert [name == "server" for name in threads] == [True, False, False, True]


# -- size --------------------------------------------------------------------------------------


def test_by_default_there_is_room_for_whatever_can_be_served() -> None:
    def input_processor(max_model_len: int | None) -> InputProcessor:
        return InputProcessor(
            tokenizer, ModelOutputs(4096, [0]), max_model_len=max_model_len, seed=0
        )

    tokenizer = scripted_engine()[0].input_processor.tokenizer
    for max_model_len in (256, 2048, 8192, 32_768):
        limit = default_max_body_bytes(input_processor(max_model_len))
        prompt = json.dumps("é" * input_processor(max_model_len).max_characters)
        batch = json.dumps([[4095] * max_model_len] * 20)
        messages = json.dumps([{"role": "user", "content": "a word"}] * 4000)
        assert max(map(len, (prompt, batch, messages))) + 1000 < limit
    assert default_max_body_bytes(input_processor(16)) == 2**20
    assert default_max_body_bytes(input_processor(10**9)) == 2**25
    assert default_max_body_bytes(input_processor(None)) == 6 * 2**22 + 2**18


def test_many_prompts_are_served_by_default(shared: LiveServer) -> None:
    answer = shared.complete(prompt=[[7] * 200] * 100, max_tokens=1)
    assert len(answer.json()["choices"]) == 100


@pytest.mark.parametrize("framing", ["Content-Length: 3000000", "Transfer-Encoding: chunked"])
def test_a_body_too_large_names_the_limit_and_closes(shared: LiveServer, framing: str) -> None:
    with HalfSent(shared, framing) as post:
        if framing.startswith("T"):
            post.send(b"2DC6C0\r\n" + b"x" * 1_100_000)
        status, _, error = post.read_to_the_end()
    assert (status, error["param"]) == (413, None)
    assert error["message"] == "the body is larger than 1,048,576 bytes (--max-body-bytes)"


def test_what_is_too_large_is_not_asked_for(shared: LiveServer) -> None:
    with HalfSent(shared, "Content-Length: 3000000", "Expect: 100-continue") as post:
        assert post.read_to_the_end()[0] == 413
    with HalfSent(shared, "Content-Length: 30", "Expect: 100-continue") as post:
        assert post.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"


def test_a_client_in_the_midst_of_sending_sees_why_it_is_refused(shared: LiveServer) -> None:
    for content in (b"x" * 10_000_000, iter([b"x" * 100_000] * 100)):
        answer = httpx.post(shared.url + COMPLETIONS, content=content, headers=JSON)
        assert answer.status_code == 413 and answer.headers["connection"] == "close"
    with HalfSent(shared, "Content-Length: 10000000") as post:
        post.send(b"x" * 10_000_000)  # is not cut short
        assert post.read_to_the_end()[0] == 413


def test_a_connection_is_kept_after_a_refusal_that_left_nothing_unread(shared: LiveServer) -> None:
    for answer in (
        shared.complete(prompt=""),
        shared.complete(prompt="x" * 200_000),
        shared.http.get("/v1/nothing"),
        shared.http.post(f"{COMPLETIONS}/none", content=b""),
    ):
        assert answer.status_code >= 400 and "connection" not in answer.headers


# -- time and memory ---------------------------------------------------------------------------


def test_a_body_that_does_not_come_in_time_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.http.guards.envelope._LINGER", 0.2)  # seconds
    with live_server(request_read_timeout=0.2) as server:
        for framing, content in (
            ("Content-Length: 30", b""),
            ("Content-Length: 30", b'{"model":'),
            ("Transfer-Encoding: chunked", b"5\r\n12"),
            ("Content-Length: 1000000", b"x" * 900_000),
        ):
            with HalfSent(server, framing) as post:
                post.send(content)
                status, _, error = post.read_to_the_end()
            assert status == 408
            assert error["type"] == "invalid_request_error"
            assert error["message"].endswith("within 0.2 s (--request-read-timeout)")
        assert server.complete(prompt="x").status_code == 200


def test_a_steady_trickle_does_not_prolong_the_time() -> None:
    with (
        live_server(request_read_timeout=0.2) as server,
        HalfSent(server, "Content-Length: 1000000") as post,
    ):
        post.socket.settimeout(0.01)
        answer = b""
        for _ in range(1000):  # one byte at a time, until there is an answer
            post.send(b" ")
            with contextlib.suppress(TimeoutError):
                answer = post.socket.recv(100)
                break
        assert answer.startswith(b"HTTP/1.1 408 ")


class Sender:
    """A request whose body comes as the test says, without a socket."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        headers = [(b"content-type", b"application/json")]
        self.request = Request({"type": "http", "headers": headers}, self._receive)

    async def _receive(self) -> Message:
        message = await self._messages.get()
        self._messages.task_done()
        return message

    async def send(self, content: bytes, *, more: bool = True) -> None:
        """Returns when it was taken."""
        self._messages.put_nowait({"type": "http.request", "body": content, "more_body": more})
        await self._messages.join()

    async def hang_up(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})


def test_unread_bytes_are_bounded_together() -> None:
    whole = json.dumps({"model": MODEL, "prompt": "x"}).encode() + b" " * 400_000
    config = ServerConfig(max_body_bytes=420_000, max_unread_bytes=420_000)

    async def scenario() -> None:
        given_back: list[None] = []
        reader = Bodies(config, 1, lambda: given_back.append(None))

        def parse(sender: Sender) -> asyncio.Task[CompletionRequest]:
            return asyncio.create_task(reader.parse(sender.request, CompletionRequest))

        async def refusal(content: bytes, *, more: bool = False) -> HTTPException:
            sender = Sender()
            reading = parse(sender)
            await sender.send(content, more=more)
            with pytest.raises(HTTPException) as caught:
                await reading
            return caught.value

        first, small, gone, left = Sender(), Sender(), Sender(), Sender()
        reading = parse(first)
        await first.send(whole[:390_000])
        refused = await refusal(whole, more=True)
        assert refused.status_code == 503 and refused.headers == {"Retry-After": "1"}
        assert "--max-unread-bytes" in refused.detail
        reading_small = parse(small)  # small ones do not count
        await small.send(whole[:60_000], more=False)
        assert (await reading_small).prompt == "x"
        assert len(given_back) == 1  # of who was refused: a small one leaves nothing behind
        await first.send(whole[390_000:], more=False)
        assert (await reading).prompt == "x"

        assert (await refusal(whole + whole)).status_code == 413
        assert (await refusal(whole[1:])).status_code == 400
        reading = parse(gone)
        await gone.send(whole)
        reading.cancel()
        await asyncio.wait([reading])
        reading = parse(left)
        await left.send(whole)
        await left.hang_up()
        with pytest.raises(ClientDisconnect):
            await reading
        assert reader._unread == 0  # whatever becomes of them, they count no longer
        assert len(given_back) > 4
        reader.close()

    asyncio.run(scenario())


def test_large_bodies_are_parsed_in_one_thread_that_ends_with_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def noting(body: bytes, *others: Any) -> Any:
        threads.append(threading.current_thread())
        return parse(body, *others)

    threads: list[threading.Thread] = []
    parse = bodies.parse
    monkeypatch.setattr(bodies, "parse", noting)
    with live_server() as server:
        for content in (b"{}", b"{%b}" % (b" " * 70_000), b"{%b}" % (b" " * 90_000)):
            assert server.http.post(COMPLETIONS, content=content, headers=JSON).status_code == 400
    assert [thread.name for thread in threads] == ["server", "quire-json_0", "quire-json_0"]
    assert not threads[-1].is_alive()


# -- documentation -----------------------------------------------------------------------------


def test_every_body_is_documented_and_read_by_the_route(shared: LiveServer) -> None:
    document = shared.http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    documented = set()
    for path, _, kind in ROUTES:
        operation = document["paths"][path.format("{session_id}")]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": f"#/components/schemas/{kind.__name__}"}
        assert set(schemas[kind.__name__]["properties"]) == set(kind.model_fields)
        documented.add(path.format("{session_id}"))
    assert {"ChatMessage", "TextPart", "ResponseFormat"} <= set(schemas)
    for route in shared.server.config.app.routes:  # type: ignore[union-attr]
        if isinstance(route, APIRoute):
            assert route.body_field is None, f"{route.path}: FastAPI would read it without bounds"
