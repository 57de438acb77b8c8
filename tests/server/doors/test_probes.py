"""What load balancers ask: /ping and /load, and HEAD wherever there is GET."""

from __future__ import annotations

import re

from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from support.live_server import MODEL, LiveServer, eventually, live_server, scripted_engine


def test_ping_says_what_health_says(server: LiveServer) -> None:
    for ask in (server.http.get, server.http.post):
        assert ask("/ping").status_code == 200


def test_load_counts_requests_that_are_not_answered_yet(server: LiveServer) -> None:
    assert server.http.get("/load").json() == {"server_load": 0}
    server.executor.hold()
    server.executor.let(steps=1)
    body = {"model": MODEL, "prompt": "x", "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body):
        assert server.http.get("/load").json() == {"server_load": 1}
    server.executor.release()
    eventually(lambda: server.http.get("/load").json() == {"server_load": 0})


def test_head_answers_as_get_does_without_a_body(shared: LiveServer) -> None:
    app = create_app(scripted_engine()[0], [MODEL], ServerConfig())
    paths = [path for path, verbs in app.openapi()["paths"].items() if "get" in verbs]
    assert {"/health", "/metrics", "/v1/models", "/api/tags", "/slots"} <= set(paths)
    for path in [*(re.sub(r"\{\w+\}", "x", path) for path in paths), "/docs", "/openapi.json"]:
        got, head = shared.http.get(path), shared.http.head(path)
        assert (head.status_code, head.content) == (got.status_code, b"")
        assert head.headers.get("content-type") == got.headers.get("content-type")
    assert shared.http.head("/v1/completions").status_code == 405


def test_a_key_in_anthropic_s_header() -> None:
    with live_server(api_key=["anna", "bert"]) as server:

        def status(*headers: tuple[str, str]) -> int:
            return server.http.get("/v1/models", headers=[*headers]).status_code

        bearer, own = ("authorization", "Bearer anna"), ("x-api-key", "anna")
        assert [status(own), status(bearer, own), status(bearer)] == [200] * 3
        assert [status(own, own), status(("x-api-key", "bert"), own)] == [401] * 2
        assert [status(bearer, ("x-api-key", "bert")), status(("x-api-key", ""))] == [401] * 2
