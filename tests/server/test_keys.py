"""API keys: what they guard, and what they keep apart."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Route

from quire.core.errors import RequestError
from quire.engine.recorder import RequestRecorder
from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from quire.http.guards.keys import ApiKeys
from quire.http.service import Caller
from quire_lab.workload import read_recording
from support.live_server import MODEL, LiveServer, eventually, live_server, scripted_engine

ANNA, BERT = "anna-s-secret", "bert-s-secret"
OPEN = {"/health", "/v1/health", "/ping", "/version", "/metrics"}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@pytest.fixture(scope="module")
def _two_keys() -> Iterator[LiveServer]:
    with live_server(api_key=[ANNA, BERT]) as server:
        yield server


@pytest.fixture
def two_keys(_two_keys: LiveServer) -> Iterator[LiveServer]:
    yield _two_keys
    eventually(_two_keys.is_idle)


def by(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def app_with(**options: Any) -> FastAPI:
    return create_app(scripted_engine()[0], [MODEL], ServerConfig(**options))


def statuses(app: FastAPI, paths: list[str], **headers: str) -> dict[tuple[str, str], int]:
    """The status of each path by each method, without a server."""

    async def ask() -> dict[tuple[str, str], int]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return {
                (path, method): (await client.request(method, path, headers=headers)).status_code
                for path in paths
                for method in METHODS
            }

    return asyncio.run(ask())


def all_paths(app: FastAPI) -> list[str]:
    """One path for each route of the app."""
    pages = [route.path for route in app.routes if isinstance(route, Route)]
    patterns = sorted({*pages, *app.openapi()["paths"]})
    assert {"/v1/completions", "/v1/sessions/{session_id}/generate", "/docs"} <= set(patterns)
    return [re.sub(r"\{\w+(:\w+)?\}", "x", pattern) for pattern in patterns]


# -- what they guard ---------------------------------------------------------------------------


@pytest.mark.parametrize(("metrics", "page"), [(False, False), (True, True)])
def test_every_route_but_a_few_needs_a_key(metrics: bool, page: bool) -> None:
    app = app_with(api_key=[ANNA], api_key_metrics=metrics, dashboard=page)
    expected = (OPEN - {"/metrics"} if metrics else OPEN) | ({"/", "/page/x"} if page else set())
    paths = all_paths(app)
    answers = statuses(app, paths)
    open_paths = {path for path, _ in answers if answers[path, "GET"] != 401}
    assert open_paths == expected
    for (path, method), status in answers.items():
        assert (status != 401) == (path in expected), f"{method} {path}: {status}"
    with_key = statuses(app, paths, authorization=f"Bearer {ANNA}")
    assert 401 not in with_key.values()


def test_a_route_that_is_added_later_needs_one_too() -> None:
    app = app_with(api_key=[ANNA], dashboard=False)
    for path in ("/later", "/", "/health/more"):
        app.add_api_route(path, lambda: "open")
    assert set(statuses(app, ["/later", "/", "/health/more"]).values()) == {401}


@pytest.mark.parametrize(
    "target",
    ["//v1/models", "/%761/models", "/%2Fv1/models", "/v1%2fmodels", "/V1/models", "/./v1/models",
     "/health/../v1/models", "/health%2f..%2fv1/models", "/health/", "//health", "/health;/v1",
     "/v1/models?/health", "/v1/models#/health", "http://x/v1/models", "http://health/v1", "*",
     "/metrics/../v1/models", "/health%00", "/v1/nothing", "/docs", "/openapi.json",
     "/page"],
)  # fmt: skip
def test_no_spelling_of_a_path_leads_round_the_guard(target: str, two_keys: LiveServer) -> None:
    for method in ("GET", "HEAD", "OPTIONS"):
        with socket.create_connection(("127.0.0.1", two_keys.server.port), 10) as connection:
            connection.sendall(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            status = connection.recv(100).split()[1]
        assert status in (b"401", b"400"), (method, target, status)


@pytest.mark.parametrize(
    "target", ["/page/../v1/models", "/page/%2e%2e/__init__.py", "/page//etc/passwd", "/page/"]
)
def test_beside_the_page_s_own_files_nothing_is_below_it(target: str, two_keys: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", two_keys.server.port), 10) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert connection.recv(100).split()[1] == b"404"


def test_without_keys_nothing_is_guarded(shared: LiveServer) -> None:
    for header in ({}, by("anything"), {"authorization": "Basic eDp5"}):
        assert shared.http.get("/v1/models", headers=header).status_code == 200


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ([], False),
        ([("Authorization", f"Bearer {ANNA}")], True),
        ([("aUTHORIZATION", f"bEARER   {ANNA}")], True),
        ([("Authorization", f"Bearer {BERT}")], True),
        ([("Authorization", "Bearer wrong")], False),
        ([("Authorization", f"Bearer {ANNA[:-1]}")], False),
        ([("Authorization", f"Bearer {ANNA}x")], False),
        ([("Authorization", f"Bearer {ANNA.upper()}")], False),
        ([("Authorization", f"Bearer {ANNA} {ANNA}")], False),
        ([("Authorization", f"Bearer {ANNA},{BERT}")], False),
        ([("Authorization", f"Bearer{ANNA}")], False),
        ([("Authorization", ANNA)], False),
        ([("Authorization", "Bearer")], False),
        ([("Authorization", "")], False),
        ([("Authorization", f"Basic {ANNA}")], False),
        ([("Authorization", b"Bearer \xff\xfe\x80")], False),
        ([("Authorization", f"Bearer {ANNA}"), ("Authorization", "Bearer wrong")], False),
        ([("Authorization", "Bearer wrong"), ("authorization", f"Bearer {ANNA}")], False),
        ([("Authorization", f"Bearer {ANNA}"), ("authorization", f"Bearer {BERT}")], False),
        ([("Authorization", f"Bearer {ANNA}"), ("authorization", f"Bearer {ANNA}")], False),
        ([("X-Api-Key", ANNA), ("x-api-key", ANNA)], False),
        ([("X-Api-Key", ANNA), ("Authorization", f"Bearer {ANNA}")], True),
        ([("X-Api-Key", BERT), ("Authorization", f"Bearer {ANNA}")], False),
        ([("X-Authorization", f"Bearer {ANNA}")], False),
    ],
)
def test_how_a_key_is_sent(headers: list[Any], allowed: bool, two_keys: LiveServer) -> None:
    answer = two_keys.http.get("/v1/models", headers=headers)
    assert answer.status_code == (200 if allowed else 401)
    if not allowed:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"


def test_openai_s_client_with_and_without_a_key(two_keys: LiveServer) -> None:
    with pytest.raises(openai.AuthenticationError):
        two_keys.openai.models.list()
    for key in (ANNA, BERT):
        client = two_keys.openai.with_options(api_key=key)
        assert client.completions.create(model=MODEL, prompt="x").choices[0].text


def test_a_body_is_not_read_before_its_key_is_known(two_keys: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", two_keys.server.port), 10) as connection:
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999"
        connection.sendall(f"{head}\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")


# -- what nobody learns of them ----------------------------------------------------------------


def test_all_keys_are_compared_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    compare = secrets.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        lengths.append(len(one))
        return compare(one, other)

    keys = ApiKeys(["first", "second-and-longer", "third"])
    monkeypatch.setattr(secrets, "compare_digest", counting)
    for presented in (b"first", b"third", b"", b"wrong" * 1000):
        lengths.clear()
        keys.name(presented)
        assert len(lengths) == 3 and len(set(lengths)) == 1  # nor by the length of a key


def test_names_tell_keys_apart_and_nothing_else() -> None:
    keys = ApiKeys(["first", "second"])
    names = [keys.name(b"first"), keys.name(b"second")]
    assert keys.name(b"third") is None
    assert len(set(names)) == 2 and names[0] == keys.name(b"first")
    assert all(name is not None and re.fullmatch("[0-9a-f]{16}", name) for name in names)
    assert ApiKeys(["first"]).name(b"first") not in names  # so that nobody can try keys by it


def test_keys_are_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with live_server(api_key=[ANNA, BERT]) as server:
        for key in (ANNA, "a-wrong-secret"):
            server.http.get("/v1/models", headers=by(key))
            server.http.post("/v1/completions", content=b"{", headers=by(key))
    told = [r for r in caplog.records if not r.name.startswith(("httpcore", "httpx"))]
    assert told
    assert "secret" not in " ".join(f"{record.getMessage()} {record.__dict__}" for record in told)


# -- what they keep apart ----------------------------------------------------------------------

PROMPT = list(range(300, 321))  # five full blocks


def cached(server: LiveServer, key: str, prompt: list[int], **body: Any) -> int:
    """Tokens found in the prefix cache, by OpenAI's own client."""
    client = server.openai.with_options(api_key=key)
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=2, extra_body=body)
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens is not None
    return answer.usage.prompt_tokens_details.cached_tokens


def test_keys_do_not_share_a_cache(two_keys: LiveServer) -> None:
    assert [cached(two_keys, key, PROMPT) for key in (ANNA, ANNA, BERT, BERT)] == [0, 20, 0, 20]
    salted = [cached(two_keys, key, PROMPT, cache_salt="s") for key in (ANNA, BERT, ANNA)]
    assert salted == [0, 0, 20]


def test_nor_do_their_chats(two_keys: LiveServer) -> None:
    messages = [{"role": "user", "content": "hello " * 20}]
    found = [
        two_keys.http.post(
            "/v1/chat/completions",
            json={"model": MODEL, "messages": messages, "max_tokens": 2},
            headers=by(key),
        ).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        for key in (ANNA, BERT, ANNA)
    ]
    assert found[:2] == [0, 0] and found[2] > 0


def test_nor_do_their_sessions(two_keys: LiveServer) -> None:
    tokens, found = list(range(400, 421)), []
    for key in (ANNA, BERT, ANNA):
        headers = by(key)
        opened = two_keys.http.post("/v1/sessions", json={"model": MODEL}, headers=headers).json()
        path = f"/v1/sessions/{opened['id']}"
        two_keys.http.post(f"{path}/append", json={"input": tokens}, headers=headers)
        body = {"max_tokens": 2, "include_metrics": True}
        answer = two_keys.http.post(f"{path}/generate", json=body, headers=headers).json()
        found.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        two_keys.http.delete(path, headers=headers)
    assert found == [0, 0, 20]


@pytest.mark.parametrize(
    "options", [{"api_key": [ANNA]}, {"api_key": [ANNA, BERT], "cache_salt_by_key": False}]
)
def test_one_cache_for_all_where_that_is_wanted(options: dict[str, Any]) -> None:
    with live_server(**options) as server:
        keys = [*options["api_key"], ANNA][:2]
        assert [cached(server, key, PROMPT) for key in keys] == [0, 20]


def test_a_recording_keeps_keys_apart_too(tmp_path: Path) -> None:
    with live_server(api_key=[ANNA, BERT]) as server:
        recorder = RequestRecorder(tmp_path / "trace", 4, server.engine.clock())
        server.engine.events.add(recorder)
        for key in (ANNA, BERT, ANNA):
            cached(server, key, PROMPT)
        for key in (ANNA, BERT, ANNA):
            headers = by(key)
            opened = server.http.post("/v1/sessions", json={"model": MODEL}, headers=headers)
            path = f"/v1/sessions/{opened.json()['id']}"
            server.http.post(f"{path}/append", json={"input": PROMPT}, headers=headers)
            server.http.post(f"{path}/generate", json={"max_tokens": 2}, headers=headers)
            server.http.delete(path, headers=headers)
        eventually(lambda: not server.engine.has_work)
        recorder.close()
    firsts = [request.content[0] for request in read_recording(tmp_path / "trace")]
    for a, b, c in (firsts[:3], firsts[3:]):
        assert a == c != b


SALTS = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
KEYS = st.text("0123456789abcdef", min_size=16, max_size=16)


@given(KEYS, SALTS, KEYS, SALTS)
def test_no_two_keys_and_salts_meet(
    key: str, salt: str | None, other: str, more: str | None
) -> None:
    one, two = Caller(key, True).cache_salt(salt), Caller(other, True).cache_salt(more)
    assert (one == two) == ((key, salt or "") == (other, more or ""))
    # Nor does what a client makes up where salts are used as they come.
    for made_up in (f"{key}{salt}", f"{key}:{salt}", key, salt):
        assert Caller().cache_salt(made_up) != one


@pytest.mark.parametrize("text", ["x" * 257, "\ud800"])
def test_names_that_are_kept_are_bounded(text: str) -> None:
    for ask, field in ((Caller().client, "user"), (Caller("k", True).cache_salt, "cache_salt")):
        with pytest.raises(RequestError) as refused:
            ask(text)
        assert refused.value.field == field
        ask("x" * 256)


def test_where_there_are_several_keys_they_are_the_clients() -> None:
    assert Caller().client(None) == ""
    assert Caller().client("anna") == "anna"
    assert Caller("key").client("anna") == Caller("key").client("x" * 1000) == "key"


# -- what usage tells --------------------------------------------------------------------------


@pytest.mark.parametrize("told", [True, False])
def test_what_others_have_sent_can_be_kept_back(told: bool) -> None:
    with live_server(enable_prompt_tokens_details=told) as server:
        ask = {"prompt": PROMPT, "max_tokens": 2, "include_metrics": True}
        answers = [server.complete(**ask).json() for _ in range(2)]
        streamed = server.complete(**ask, stream=True, stream_options={"include_usage": True})
        answers.append(json.loads(streamed.text.splitlines()[-4].removeprefix("data: ")))
    for answer, found in zip(answers, (0, 20, 20), strict=True):
        assert answer["usage"]["total_tokens"] == 23
        details = {"prompt_tokens_details": {"cached_tokens": found}} if told else {}
        assert answer["usage"].items() >= details.items()
        assert ("prompt_tokens_details" in answer["usage"]) == told
        (story,) = answer["metrics"]
        assert ("cached_tokens" in story) == ("block_seconds" in story) == told
        assert story["peak_blocks"] == 6
