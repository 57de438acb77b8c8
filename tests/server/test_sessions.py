"""Streaming sessions over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from support.live_server import MODEL, LiveServer, events, eventually, live_server


class HttpSession:
    """One session of a server, by its routes."""

    def __init__(self, server: LiveServer, **options: Any) -> None:
        self._http = server.http
        opened = self._http.post("/v1/sessions", json={"model": MODEL, **options})
        assert opened.status_code == 200, opened.text
        self.card = opened.json()
        self.path = f"/v1/sessions/{self.card['id']}"

    def post(self, verb: str, **body: Any) -> httpx.Response:
        return self._http.post(f"{self.path}/{verb}", json=body)

    def get(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._http.get(self.path).json()
        return answer

    def delete(self) -> httpx.Response:
        return self._http.delete(self.path)


@contextmanager
def session_of(server: LiveServer, **options: Any) -> Iterator[HttpSession]:
    session = HttpSession(server, **options)
    try:
        yield session
    finally:
        session.delete()


def test_turns_go_on_from_all_that_was_said(shared: LiveServer) -> None:
    with session_of(shared) as session:
        assert session.card["num_tokens"] == session.card["cache_epoch"] == 0
        history = shared.tokenizer.encode("The town by the river")
        appended = session.post("append", input="The town by the river").json()
        assert appended["num_tokens"] == appended["num_input_tokens"] == len(history)
        for seed in (3, 4):
            answer = session.post("generate", max_tokens=9, seed=seed).json()
            alone = shared.complete(prompt=history, max_tokens=9, seed=seed).json()
            assert answer["choices"][0]["text"] == alone["choices"][0]["text"]
            assert answer["choices"][0]["finish_reason"] == "length"
            assert (answer["object"], answer["model"]) == ("text_completion", MODEL)
            assert answer["usage"]["prompt_tokens"] == (len(history) if seed == 3 else 3)
            history = list(shared.engine.sessions.get(session.card["id"]).history)
            more = shared.tokenizer.encode(" and then so", add_special_tokens=False)
            history += more
            assert len(more) == 3
            session.post("append", input=" and then so")
        assert session.get()["num_tokens"] == len(history)


def test_a_stream_says_what_the_whole_answer_says(shared: LiveServer) -> None:
    ask = {"max_tokens": 12, "seed": 7}
    with session_of(shared) as one, session_of(shared) as other:
        for session in (one, other):
            session.post("append", input=[5, 6, 7])
        whole = one.post("generate", **ask).json()["choices"][0]["text"]
        stream = other.post("generate", **ask, stream=True, stream_options={"include_usage": True})
        *chunks, last = events(stream)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
        assert len(chunks) == 12
        assert last["usage"]["total_tokens"] == 15


def test_cuts_recomputes_and_their_events(shared: LiveServer) -> None:
    with session_of(shared) as session:
        session.post("append", input=[5, 6, 7, 8])
        session.post("generate", max_tokens=3)
        cut = session.post("recompute", last_n=2).json()
        assert (cut["num_tokens"], cut["cache_epoch"]) == (2, 0)
        cut = session.post("hard_cut").json()
        assert (cut["num_tokens"], cut["cache_epoch"]) == (0, 1)
        told = session.get()["events"]
        assert [event["what"] for event in told] == [
            "open", "append", "generate", "end", "recompute", "hard_cut",
        ]  # fmt: skip
        assert [event["num_tokens"] for event in told] == [0, 4, 4, 7, 2, 0]
        assert told[3]["request_id"].startswith("turn-")


def test_a_soft_cut_is_told_and_changes_what_comes(shared: LiveServer) -> None:
    texts = []
    for cut in (None, {"bias": 0}, {"bias": -2.5, "fade": 3}, {"bias": "-inf"}):
        with session_of(shared) as session:
            session.post("append", input=list(range(5, 45)))
            if cut is not None:
                told = session.post("soft_cut", **cut).json()["soft_cuts"]
                known = {"position": 40, "fade": 0, **cut}
                assert told == ([known] if cut["bias"] else [])
                assert session.get()["events"][-1]["what"] == "soft_cut"
            session.post("append", input=[7, 8, 9])
            answer = session.post("generate", max_tokens=20, seed=7).json()
            texts.append(answer["choices"][0]["text"])
    assert texts[0] == texts[1] and len(set(texts)) == 3


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "bias", "required"),
        ({"bias": 1}, "bias", "from -inf to 0"),
        ({"bias": "inf"}, "bias", 'a number that is at most 0, or "-inf"'),
        ({"bias": True}, "bias", 'a number that is at most 0, or "-inf"'),
        ({"bias": -1, "fade": -1}, "fade", "from 0 to 2,147,483,647"),
        ({"bias": -1, "fade": 1.5}, "fade", "integer"),
        ({"bias": -1, "fades": 1}, "fades", "fades"),
    ],
)
def test_what_is_no_soft_cut_is_refused(
    shared: LiveServer, body: dict[str, Any], param: str, message: str
) -> None:
    with session_of(shared) as session:
        session.post("append", input=[5, 6])
        answer = session.post("soft_cut", **body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param)
        assert message in error["message"]
        assert session.get()["soft_cuts"] == []


def test_a_session_can_be_told_to_recompute_by_itself(shared: LiveServer) -> None:
    with session_of(shared, recompute_last_n=5) as session:
        for _ in range(5):
            session.post("append", input=[7] * 60)
            assert session.post("generate", max_tokens=3).status_code == 200
        told = session.get()
        assert "recompute" in [event["what"] for event in told["events"]]
        assert told["num_tokens"] < 256


def test_a_closed_session_is_gone(shared: LiveServer) -> None:
    with session_of(shared) as session:
        session.post("append", input=[5, 6, 7, 8])
        session.post("generate", max_tokens=3)
        assert session.delete().json() == {
            "id": session.card["id"], "object": "session", "deleted": True,
        }  # fmt: skip
        assert shared.is_idle()
        for answer in (
            shared.http.get(session.path),
            session.delete(),
            session.post("append", input="x"),
            session.post("generate", max_tokens=3),
            session.post("hard_cut"),
            session.post("recompute", last_n=3),
            session.post("soft_cut", bias=-1),
        ):
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "session_not_found"


def test_a_client_that_leaves_ends_its_turn_only(server: LiveServer) -> None:
    with session_of(server) as session:
        session.post("append", input=[5, 6, 7])
        server.executor.fail = lambda step: time.sleep(0.02)  # slow, so that there is time to act
        body = {"max_tokens": 150, "stream": True}
        with server.http.stream("POST", f"{session.path}/generate", json=body) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            assert session.get()["busy"]
            for verb, given in (
                ("append", {"input": "x"}),
                ("generate", {}),
                ("hard_cut", {}),
                ("recompute", {"last_n": 3}),
                ("soft_cut", {"bias": -1}),
            ):
                busy = session.post(verb, **given)
                assert (busy.status_code, busy.json()["error"]["code"]) == (409, "session_busy")
        eventually(lambda: not session.get()["busy"])
        assert server.num_aborted == 1
        known = session.get()["num_tokens"]
        assert 3 < known < 150
        answer = session.post("generate", max_tokens=4)
        assert answer.json()["usage"]["completion_tokens"] == 4
        assert session.get()["num_tokens"] == known + 4
    eventually(server.is_idle)


def test_what_cannot_be_kept_is_refused(shared: LiveServer) -> None:
    for last_n in (0, 255, "5"):
        body = {"model": MODEL, "recompute_last_n": last_n}
        answer = shared.http.post("/v1/sessions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "recompute_last_n")


@pytest.mark.parametrize(
    ("verb", "body", "param"),
    [
        ("generate", {"n": 2}, "n"),
        ("generate", {"use_beam_search": True, "beam_width": 2}, "use_beam_search"),
        ("generate", {"prompt_logprobs": 1}, "prompt_logprobs"),
        ("generate", {"cache_salt": "x"}, "cache_salt"),
        ("generate", {"priority": 1}, "priority"),
        ("generate", {"prompt": "x"}, "prompt"),
        ("generate", {"echo": True}, "echo"),
        ("generate", {"max_tokens": 1000}, "max_tokens"),
        ("append", {"input": ""}, "input"),
        ("append", {"input": [10**6]}, "input"),
        ("append", {"input": {"text": "x"}}, "input"),
        ("append", {"input": [5] * 300}, "input"),
        ("append", {}, "input"),
        ("recompute", {"last_n": 0}, "last_n"),
        ("recompute", {"last_n": "3"}, "last_n"),
        ("recompute", {}, "last_n"),
    ],
)
def test_refusals_name_the_field(
    verb: str, body: dict[str, Any], param: str, shared: LiveServer
) -> None:
    with session_of(shared) as session:
        session.post("append", input=[5, 6])
        answer = session.post(verb, **body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert session.get()["num_tokens"] == 2


def test_an_empty_session_has_nothing_to_go_on_from(shared: LiveServer) -> None:
    with session_of(shared) as session:
        answer = session.post("generate")
        assert answer.status_code == 400
        assert "append something" in answer.json()["error"]["message"]


def test_an_unknown_model_is_refused(shared: LiveServer) -> None:
    answer = shared.http.post("/v1/sessions", json={"model": "other"})
    assert answer.json()["error"]["code"] == "model_not_found"
    with session_of(shared) as session:
        session.post("append", input=[5, 6])
        assert session.post("generate", model="other").status_code == 404
        assert session.post("generate", model=MODEL).status_code == 200


def test_only_so_many_sessions_are_open(server: LiveServer) -> None:
    sessions = server.engine.sessions
    sessions.rules = replace(sessions.rules, max_num_sessions=2)
    with session_of(server), session_of(server):
        answer = server.http.post("/v1/sessions", json={"model": MODEL})
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "too_many_sessions"
        assert "max_num_sessions, 2" in answer.json()["error"]["message"]
        assert server.metric("quire:num_sessions") == 2
    assert server.metric("quire:num_sessions") == 0


# -- whose they are ----------------------------------------------------------------------------


def by(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def server_with_keys() -> Iterator[LiveServer]:
    with live_server(api_key=["anna", "bert"]) as server:
        yield server


def listed(server: LiveServer, key: str = "none", **query: str) -> list[str]:
    """The ids that ``GET /v1/sessions`` tells."""
    answer = server.http.get("/v1/sessions", headers=by(key), params=query)
    assert answer.json()["object"] == "list"
    return [card["id"] for card in answer.json()["data"]]


def test_sessions_are_listed_to_who_opened_them(shared: LiveServer) -> None:
    with session_of(shared) as one, session_of(shared) as two, session_of(shared, user="a") as own:
        two.post("append", input=[5, 6, 7])
        assert listed(shared) == [one.card["id"], two.card["id"]]
        assert listed(shared, user="a") == [own.card["id"]]
        assert listed(shared, user="b") == []
        cards = shared.http.get("/v1/sessions").json()["data"]
        assert cards == [one.card, {**one.card, **two.card, "num_tokens": 3, "num_input_tokens": 3}]
    assert listed(shared) == []


def test_with_several_keys_a_session_is_its_key_s(server_with_keys: LiveServer) -> None:
    server = server_with_keys
    body = {"model": MODEL, "user": "same"}
    card = server.http.post("/v1/sessions", json=body, headers=by("anna")).json()
    path = f"/v1/sessions/{card['id']}"
    assert listed(server, "anna") == listed(server, "anna", user="x") == [card["id"]]
    assert listed(server, "bert") == listed(server, "bert", user="same") == []
    asked = [
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/append", {"input": [5]}),
        ("POST", "/generate", {"max_tokens": 2}),
        ("POST", "/generate", {"max_tokens": 2, "stream": True}),
        ("POST", "/soft_cut", {"bias": -1}),
        ("POST", "/recompute", {"last_n": 1}),
        ("POST", "/hard_cut", None),
    ]
    api = server.http.get("/openapi.json", headers=by("anna")).json()["paths"]
    routes = {
        (method.upper(), route.removeprefix("/v1/sessions/{session_id}"))
        for route in api
        if route.startswith("/v1/sessions/")
        for method in api[route]
    }
    assert routes == {(method, verb) for method, verb, _ in asked}
    for method, verb, given in asked:
        answer = server.http.request(method, path + verb, json=given, headers=by("bert"))
        missing = server.http.request(
            method, f"/v1/sessions/{'x' * len(card['id'])}{verb}", json=given, headers=by("bert")
        )
        assert answer.status_code == missing.status_code == 404, verb
        assert answer.text == missing.text.replace("x" * len(card["id"]), card["id"])
    assert server.http.get(path, headers=by("anna")).json()["events"][1:] == []
    for method, verb, given in [*asked[2:], *asked[:2]]:
        answer = server.http.request(method, path + verb, json=given, headers=by("anna"))
        assert answer.status_code == 200, verb


def test_one_client_cannot_take_all_sessions(server: LiveServer) -> None:
    sessions = server.engine.sessions
    sessions.rules = replace(sessions.rules, max_sessions_per_client=1)
    with session_of(server, user="anna"), session_of(server):
        for user in ("anna", None):
            answer = server.http.post("/v1/sessions", json={"model": MODEL, "user": user})
            assert answer.status_code == 429
            assert answer.json()["error"]["code"] == "too_many_sessions"
            assert "max_sessions_per_client, 1," in answer.json()["error"]["message"]
        with session_of(server, user="bert"):
            pass


def test_nor_by_giving_many_names_with_one_key(server_with_keys: LiveServer) -> None:
    sessions = server_with_keys.engine.sessions
    sessions.rules = replace(sessions.rules, max_sessions_per_client=1)
    statuses = [
        server_with_keys.http.post(
            "/v1/sessions", json={"model": MODEL, "user": user}, headers=by(key)
        ).status_code
        for key, user in (("anna", "a"), ("anna", "b"), ("bert", "a"))
    ]
    assert statuses == [200, 429, 200]


@pytest.mark.parametrize("field", ["user", "cache_salt"])
@pytest.mark.parametrize("value", ["x" * 257, "\ud800", 5])
def test_a_name_that_cannot_be_kept_is_refused(shared: LiveServer, field: str, value: Any) -> None:
    content = json.dumps({"model": MODEL, field: value})
    headers = {"content-type": "application/json"}
    answer = shared.http.post("/v1/sessions", content=content, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    if field == "user":
        assert listed(shared) == []


def test_idle_sessions_expire() -> None:
    with live_server({"session_timeout": 5.0}) as server:
        now = time.monotonic()
        server.engine.sessions._clock = lambda: now
        with session_of(server) as session:
            session.post("append", input=[5] * 9)
            session.post("generate", max_tokens=3)
            now += 4.9
            assert session.get()["num_tokens"] == 12
            now += 0.2
            assert listed(server) == []
            assert server.metric("quire:num_sessions") == 0
            eventually(server.is_idle)  # nobody has asked for it
            answer = session.post("generate")
            assert answer.status_code == 404
            assert "session_timeout is 5 seconds" in answer.json()["error"]["message"]
