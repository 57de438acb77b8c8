"""What all answers bear: ids, what browsers ask for, a line in the log; errors in our words."""

from __future__ import annotations

import gzip
import logging
import re
import ssl
import subprocess
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException

from quire.core.errors import ConfigError
from quire.http.guards.bodies import unpacked
from support.live_server import MODEL, LiveServer, Post, events, eventually, live_server

COMPLETIONS = "/v1/completions"
PAGE = "https://page.example"
HERE = "http://localhost:3000"


@pytest.fixture(scope="module")
def guarded() -> Iterator[LiveServer]:
    with live_server(
        api_key=["secret"], allowed_origins=[PAGE], allow_credentials=True, root_path="/llm"
    ) as server:
        yield server


# Every kind of answer: whole, stream, refusal, no route, wrong method, health, broken body.
ASKED: list[tuple[str, str, dict[str, Any], int]] = [
    ("POST", COMPLETIONS, {"json": {"prompt": "x", "max_tokens": 1}}, 200),
    ("POST", COMPLETIONS, {"json": {"prompt": "x", "max_tokens": 1, "stream": True}}, 200),
    ("POST", COMPLETIONS, {"json": {"prompt": ""}}, 400),
    ("POST", COMPLETIONS, {"content": b"x"}, 400),
    ("GET", "/v1/nothing", {}, 404),
    ("GET", COMPLETIONS, {}, 405),
    ("GET", "/health", {}, 200),
]


@pytest.mark.parametrize(("method", "path", "body", "status"), ASKED)
def test_every_answer_bears_its_request_s_id(
    shared: LiveServer, method: str, path: str, body: dict[str, Any], status: int
) -> None:
    def ask(**headers: str) -> httpx.Response:
        answer = shared.http.request(method, path, headers={"origin": HERE, **headers}, **body)
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == HERE
        return answer

    assert ask(**{"x-request-id": "my-own.1"}).headers["x-request-id"] == "my-own.1"
    for given in ("", "x" * 129, "two words", "a\tb"):
        fresh = ask(**{"x-request-id": given}).headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{32}", fresh)


def test_an_answer_s_id_is_the_request_s(shared: LiveServer) -> None:
    answer = shared.http.post(COMPLETIONS, json={"prompt": "x"}, headers={"x-request-id": "one"})
    assert answer.json()["id"] == "cmpl-one"
    several = shared.complete(prompt="x", max_tokens=1, stream=True)
    (head, *_) = events(several)
    assert head["id"] == "cmpl-" + several.headers["x-request-id"]


def test_what_never_reaches_the_app_has_an_id_too(shared: LiveServer) -> None:
    with Post(shared, {}) as post:
        post.socket.sendall(b"NONSENSE\r\n\r\n")
        assert b"x-request-id: " in post.read_until(b"not an HTTP request")


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "quire.access"]


def test_a_request_has_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    quiet = {"disable_access_log_for_endpoints": "/version"}
    with live_server(**quiet) as server, caplog.at_level(logging.INFO, "quire.access"):
        headers = {"x-request-id": "seven"}
        server.http.post(f"{COMPLETIONS}?secret=1", json={"prompt": ""}, headers=headers)
        server.http.get("/version", headers=headers)
        server.http.get("/%0Aforged " + "x" * 500, headers=headers)
        eventually(lambda: len(lines_of(caplog)) >= 2)
        lines = lines_of(caplog)
    assert re.fullmatch(r"POST /v1/completions 400 \d+ ms seven", lines[0])
    assert lines[1].startswith("GET /%0Aforged%20xxx") and len(lines[1]) < 250
    assert len(lines) == 2


def test_a_client_that_has_left_has_one_too(caplog: pytest.LogCaptureFixture) -> None:
    with live_server() as server, caplog.at_level(logging.INFO, "quire.access"):
        server.executor.hold()
        with Post(server, {"model": MODEL, "prompt": "x"}):
            eventually(lambda: server.engine.has_work)
        eventually(lambda: any(" 499 " in line for line in lines_of(caplog)))


def test_no_line_where_none_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    with (
        live_server(disable_uvicorn_access_log=True) as server,
        caplog.at_level(logging.INFO, "quire.access"),
    ):
        server.http.get("/v1/models")
    assert not lines_of(caplog)


def test_a_failure_that_nobody_foresaw_is_told_with_its_id(
    shared: LiveServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("quire.http.service.Service.check_answer", fail)
    headers = {"x-request-id": "nine", "origin": HERE}
    answer = shared.http.post(COMPLETIONS, json={"prompt": "x"}, headers=headers)
    assert answer.status_code == 500 and "request nine" in answer.json()["error"]["message"]
    assert answer.headers["access-control-allow-origin"] == HERE
    assert answer.headers["x-request-id"] == "nine"
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert record.getMessage() == "request nine failed" and record.exc_info


# -- browsers ----------------------------------------------------------------------------------


def asks(server: LiveServer, origin: str) -> httpx.Response:
    """What a browser asks before a page's request."""
    wanted = {"access-control-request-method": "POST",
              "access-control-request-headers": "authorization,content-type"}  # fmt: skip
    return server.http.options(COMPLETIONS, headers={"origin": origin, **wanted})


def test_a_browser_may_ask_for_any_page_of_a_server_with_keys() -> None:
    with live_server(api_key=["secret"]) as server:
        answer = asks(server, PAGE)
        assert answer.status_code == 204 and answer.headers["access-control-allow-origin"] == "*"


def test_a_browser_may_ask_for_pages_of_this_machine(shared: LiveServer) -> None:
    answer = asks(shared, HERE)
    assert answer.status_code == 204 and answer.headers["access-control-allow-origin"] == HERE
    assert answer.headers["access-control-allow-methods"] == "POST"
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "access-control-allow-origin" not in shared.http.get("/health").headers
    assert shared.http.options(COMPLETIONS).status_code == 405  # nobody's page


def test_only_pages_that_are_allowed(guarded: LiveServer) -> None:
    allowed, other = asks(guarded, PAGE), asks(guarded, "https://other.example")
    assert (allowed.status_code, other.status_code) == (204, 403), "no key is borne yet"
    assert allowed.headers["access-control-allow-origin"] == PAGE
    assert allowed.headers["access-control-allow-credentials"] == "true"
    for origin, told in ((PAGE, PAGE), ("https://other.example", None)):
        refused = guarded.http.post(COMPLETIONS, headers={"origin": origin})
        assert refused.status_code == 401 and refused.headers["vary"] == "Origin"
        assert refused.headers.get("access-control-allow-origin") == told


def test_no_page_at_all() -> None:
    with live_server(allowed_origins=["[]"]) as server:
        assert asks(server, HERE).status_code == 403
        answer = server.http.get("/health", headers={"origin": HERE})
        assert answer.status_code == 403 and "vary" not in answer.headers


# -- a server for this machine alone -----------------------------------------------------------

ANSWERED = [
    {"host": "localhost:8000"}, {"host": "LOCALHOST."}, {"host": "127.0.0.1"},
    {"host": "[::1]:8000"}, {"host": "app.localhost"}, {"host": "proxy.example"},
    {"origin": "http://127.0.0.1:5173"}, {"origin": "https://[::1]"}, {"origin": "tauri://app"},
    {"origin": "http://proxy.example"}, {"origin": "https://page.example"},
]  # fmt: skip
REFUSED = [
    {"host": "evil.example"}, {"host": "evil.example:8000"}, {"host": "localhost.evil.example"},
    {"host": "127.0.0.1.evil.example"}, {"host": "[::2]"}, {"host": "192.168.0.9"}, {"host": ""},
    {"origin": "https://evil.example"}, {"origin": "http://localhost.evil.example"},
    {"origin": "null"}, {"origin": "http://[::1"}, {"origin": ""},
    {"origin": "http://page.example"},
]  # fmt: skip


@pytest.fixture(scope="module")
def private() -> Iterator[LiveServer]:
    with live_server(
        allowed_hosts=["proxy.example"], allowed_origins=["localhost", "https://page.example"]
    ) as server:
        yield server


@pytest.mark.parametrize("headers", ANSWERED, ids=str)
def test_without_a_key_it_answers_its_own_machine(
    private: LiveServer, headers: dict[str, str]
) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    assert private.http.post(COMPLETIONS, json=body, headers=headers).status_code == 200


@pytest.mark.parametrize("headers", REFUSED, ids=str)
def test_no_page_of_another_site_reaches_it(private: LiveServer, headers: dict[str, str]) -> None:
    """By a name that leads here (DNS rebinding), or straight: nothing is computed for it."""
    done = private.executor.num_steps
    body = {"prompt": "x", "max_tokens": 1}
    for path in (COMPLETIONS, "/api/generate", "/v1/messages"):
        answer = private.http.post(path, json=body, headers=headers)
        assert answer.status_code == 403, answer.text
        assert "--allowed-" in answer.text
    for path in ("/", "/v1/models", "/v1/quire/state", "/health", "/metrics"):
        assert private.http.get(path, headers=headers).status_code == 403
    assert private.executor.num_steps == done


def test_with_a_key_any_name_will_do(guarded: LiveServer) -> None:
    headers = {"host": "any.example", "authorization": "Bearer secret"}
    body = {"prompt": "x", "max_tokens": 1}
    assert guarded.http.post(COMPLETIONS, json=body, headers=headers).status_code == 200


# -- what there is not -------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "words"), [
    ("POST", "/chat/completion", "did you mean /chat/completions?"),
    ("POST", "/v1/v1/completions", "did you mean /v1/completions?"),
    ("GET", "/v1/model", "did you mean /v1/models?"),
    ("GET", "/metric", "did you mean /metrics?"),
    ("GET", "/favicon.ico", "/docs tells what there is"),
    ("GET", "/" + "x" * 5000, "..."),
])  # fmt: skip
def test_a_path_that_is_not_there_names_one_that_is(
    shared: LiveServer, method: str, path: str, words: str
) -> None:
    answer = shared.http.request(method, path)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 404 and words in message and len(message) < 400


def test_a_method_that_is_not_there_names_those_that_are(shared: LiveServer) -> None:
    for path, allowed in ((COMPLETIONS, {"POST"}), ("/v1/sessions/x", {"GET", "DELETE"})):
        answer = shared.http.put(path)
        assert answer.status_code == 405
        assert set(answer.headers["allow"].split(", ")) >= allowed
        assert f"takes {answer.headers['allow']}, not 'PUT'" in answer.json()["error"]["message"]


def test_below_a_proxy_s_path(guarded: LiveServer) -> None:
    for path in ("/health", "/llm/health"):
        assert guarded.http.get(path).status_code == 200
    for path in ("/llm/v1/models", "/llm/healthy", "/llm", "/llm/llm/health"):
        assert guarded.http.get(path).status_code == 401
    headers = {"authorization": "Bearer secret"}
    assert guarded.http.get("/llm/v1/models", headers=headers).status_code == 200


# -- bodies ------------------------------------------------------------------------------------

JSON = {"content-type": "application/json"}
ASK = b'{"prompt": "Once upon a time", "max_tokens": 3, "seed": 1}'


PACKED = [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)]


@pytest.mark.parametrize(("encoding", "pack"), [*PACKED, ("GZIP", gzip.compress)])
def test_a_body_may_come_packed(shared: LiveServer, encoding: str, pack: Any) -> None:
    headers = {**JSON, "content-encoding": encoding}
    plain = shared.http.post(COMPLETIONS, content=ASK, headers=JSON).json()["choices"]
    packed = shared.http.post(COMPLETIONS, content=pack(ASK), headers=headers)
    assert packed.json()["choices"] == plain


BOMB, SMALL = (gzip.compress(text, mtime=0) for text in (b" " * 2**24, ASK))


@pytest.mark.parametrize(("encoding", "body", "status", "words"), [
    ("gzip", BOMB, 413, "unpacks to more than 1,048,576 bytes"),
    ("gzip", SMALL[:-9], 400, "not one whole gzip stream"),
    ("gzip", SMALL * 2, 400, "not one whole gzip stream"),
    ("gzip", ASK, 400, "cannot be unpacked: Error -3"),
    ("gzip", b"", 400, "not one whole"),
    ("br", ASK, 415, "gzip, deflate or identity"),
    ("gzip, gzip", ASK, 415, "not understood"),
    ("", b'{"prompt": "\xff"}', 400, "the body is not UTF-8: byte 12 is 0xff"),
    ("", b"[" * 500 + b"]" * 500, 400, "more than 200 levels deep"),
    ("", b'{"prompt": x}', 400, "not valid JSON: expected value at line 1 column 12"),
])  # fmt: skip
def test_a_body_that_cannot_be_read_is_told_why(
    shared: LiveServer, encoding: str, body: bytes, status: int, words: str
) -> None:
    headers = {**JSON, "content-encoding": encoding}
    answer = shared.http.post(COMPLETIONS, content=body, headers=headers)
    assert answer.status_code == status and words in answer.json()["error"]["message"]


def test_a_body_is_unpacked_no_further_than_it_may_go() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HTTPException) as refused:
            unpacked(BOMB, 10_000)
        assert refused.value.status_code == 413
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


# -- the start ---------------------------------------------------------------------------------


def test_https(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    try:
        subprocess.run(
            [*command.split(), "-keyout", key, "-out", certificate, "-subj", "/CN=localhost",
             "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("there is no openssl to make a certificate with")
    with live_server(ssl_keyfile=str(key), ssl_certfile=str(certificate)) as server:
        trust = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(base_url=server.url.replace("http", "https"), verify=trust) as client:
            answer = client.post(COMPLETIONS, json={"prompt": "x", "stream": True, "max_tokens": 2})
            assert len(events(answer)) == 2
    with pytest.raises(ConfigError, match="cannot be used"), live_server(
        ssl_certfile=str(key)):  # fmt: skip
        pass


def test_an_open_server_says_so(caplog: pytest.LogCaptureFixture) -> None:
    from quire.http.config.server import ServerConfig
    from quire.http.serving import _welcome

    with caplog.at_level(logging.INFO):
        for host, keys in (("0.0.0.0", []), ("::", []), ("0.0.0.0", ["k"]), ("127.0.0.1", [])):
            caplog.clear()
            _welcome(host, 8000, ServerConfig(api_key=keys))
            warned = [one for one in caplog.records if one.levelno == logging.WARNING]
            assert bool(warned) is (not keys and host != "127.0.0.1")
            assert "Quire running on http://" in caplog.records[0].getMessage()
    assert ServerConfig().host == "127.0.0.1"
