"""What clients send that Quire does not have: one policy at every door."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.live_server import MODEL, LiveServer, live_server
from support.speaking import TEMPLATE, WEATHER

ASKED = [{"role": "user", "content": "hello"}]
# The last of a stream that says something, where that is not its last event.
DOORS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": ASKED, "max_tokens": 3}),
    ("/v1/completions", {"prompt": "hello", "max_tokens": 3}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": 3}),
    ("/v1/messages", {"messages": ASKED, "max_tokens": 3}),
    ("/api/chat", {"messages": ASKED, "options": {"num_predict": 3}}),
    ("/api/generate", {"prompt": "hello", "options": {"num_predict": 3}}),
    ("/completion", {"prompt": "hello", "n_predict": 3}),
    ("/v1/embeddings", {"input": "hello"}),
    ("/v1/score", {"text_1": "a", "text_2": "b"}),
    ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ("/api/embed", {"input": "hello"}),
    ("/api/embeddings", {"prompt": "hello"}),
    ("/tokenize", {"prompt": "hello"}),
    ("/v1/messages/count_tokens", {"messages": ASKED}),
]
STREAMED = [path for path, _ in DOORS[:7]]
NOTE = "the field telemetry was left out: it says nothing about the text"


@pytest.fixture(scope="module")
def _speaking() -> Iterator[LiveServer]:
    """One that answers to any name."""
    options = {"chat_template": TEMPLATE, "num_blocks": 512}
    with live_server(options, strict_model_name=False) as server:
        yield server


def post(server: LiveServer, path: str, body: Any, **more: Any) -> Any:
    answer = server.http.post(path, json={"model": MODEL, "stream": False, **body} | more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def unstreamed(path: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, **body, **more}
    return body if path not in STREAMED else {"stream": False, **body}


@pytest.mark.parametrize(("path", "body"), DOORS, ids=[path for path, _ in DOORS])
def test_what_says_nothing_about_the_text_is_left_out_and_told(
    speaking: LiveServer, path: str, body: dict[str, Any]
) -> None:
    before = left_out(speaking, "telemetry")
    plain = speaking.http.post(path, json=unstreamed(path, body)).json()
    assert "warnings" not in plain
    answer = speaking.http.post(path, json=unstreamed(path, body, telemetry={"id": 5}))
    assert answer.status_code == 200 and answer.json()["warnings"] == [NOTE], answer.text
    assert left_out(speaking, "telemetry") == before + 1
    if path in STREAMED:
        streamed = {"model": MODEL, **body, "telemetry": {"id": 5}, "stream": True}
        text = speaking.http.post(path, json=streamed).text
        assert json.dumps(NOTE) in text, "a stream tells it too"


def left_out(server: LiveServer, field: str) -> float:
    name = f'quire:fields_left_out_total{{field="{field}"'
    lines = server.http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.mark.parametrize(("path", "body"), DOORS, ids=[path for path, _ in DOORS])
def test_what_may_change_the_text_is_refused_with_its_neighbour(
    speaking: LiveServer, path: str, body: dict[str, Any]
) -> None:
    answer = speaking.http.post(path, json=unstreamed(path, body, modle="x", mind="y"))
    assert answer.status_code == 400
    assert "field modle is not supported by Quire; did you mean model?" in answer.text


@pytest.mark.parametrize(
    ("path", "more", "named"),
    [
        ("/v1/chat/completions", {"messages": [{**ASKED[0], "annotations": []}]}, "annotations"),
        ("/v1/chat/completions", {"messages": [ASKED[0], {
            "role": "assistant", "content": "x", "provider_specific_fields": {"a": 1}}]},
         "provider_specific_fields"),
        ("/v1/chat/completions", {"tools": [{**WEATHER, "cache_control": {}}]}, "cache_control"),
        ("/v1/messages", {"messages": [{"role": "assistant", "content": [
            {"type": "text", "text": "x", "parsed_output": None, "id": "5"}]}]}, "id"),
        ("/v1/responses", {"input": [{"role": "user", "content": [
            {"type": "input_text", "text": "x", "created_at": 5}]}]}, "created_at"),
        ("/api/chat", {"messages": [{**ASKED[0], "timestamp": "now"}]}, "timestamp"),
    ],
)  # fmt: skip
def test_so_it_is_of_what_is_in_a_body(
    speaking: LiveServer, path: str, more: Any, named: str
) -> None:
    body = {**dict(DOORS)[path], **more}
    (warning,) = post(speaking, path, body)["warnings"]
    assert warning == f"the field {named} was left out: it says nothing about the text"


def test_of_a_beta_passes_what_is_not_known(speaking: LiveServer) -> None:
    body = {"model": MODEL, **dict(DOORS)["/v1/messages"], "dream": {"mode": "deep"}}
    assert speaking.http.post("/v1/messages", json=body).status_code == 400
    headers, before = {"anthropic-beta": "dreams-2027-01-01"}, left_out(speaking, "_other")
    answer = speaking.http.post("/v1/messages?beta=true", json=body, headers=headers)
    assert answer.json()["warnings"] == [
        "the field dream was left out: it is of a beta that Quire does not know"
    ]
    assert left_out(speaking, "_other") == before + 1
    many = {f"dream{number}": 1 for number in range(33)}
    for refused in ({"temprature": 1}, {"container": "x"}, {"mcp_servers": [{}]}, many):
        more = {"model": MODEL, **dict(DOORS)["/v1/messages"], **refused}
        answer = speaking.http.post("/v1/messages", json=more, headers=headers)
        assert answer.status_code == 400, refused


def test_a_thread_is_refused_as_anthropic_s_tool_runner_reads_it(speaking: LiveServer) -> None:
    """It goes on with all messages; where the thread was left out, it would send the last alone."""
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        body = {"model": MODEL, **dict(DOORS)["/v1/messages"], "thread": thread}
        headers = {"anthropic-beta": "message-threads-2026-08-12"}
        answer = speaking.http.post("/v1/messages?beta=true", json=body, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["details"] == {
            "error_code": "thread_unsupported_request", "unsupported": ["thread"]
        }  # fmt: skip
        del body["max_tokens"]
        path = "/v1/messages/count_tokens"
        assert speaking.http.post(path, json=body, headers=headers).status_code == 400


def test_strictly_all_of_it_is_refused() -> None:
    with live_server(strict_fields=True) as server:
        for path, body in DOORS:
            if not path.startswith("/api/embeddings"):
                answer = server.http.post(path, json=unstreamed(path, body, telemetry=5))
                assert answer.status_code == 400 and "field telemetry is not" in answer.text, path
        headers = {"anthropic-beta": "dreams-2027-01-01"}
        body = {"model": MODEL, **dict(DOORS)["/v1/messages"], "dream": 5}
        assert server.http.post("/v1/messages", json=body, headers=headers).status_code == 400
        penalty = {"repeat_penalty": 1.1, "repeat_last_n": 64}
        for path, more in (("/completion", penalty), ("/api/generate", {"options": penalty})):
            refused = server.http.post(path, json={"model": MODEL, "prompt": "x", **more})
            assert refused.status_code == 400 and "repeat_last_n must be -1" in refused.text
        document = server.http.get("/openapi.json").text
        assert "^telemetry$" not in document and "^mirostat$" in document


# -- what clients have as their habits ---------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), DOORS, ids=[path for path, _ in DOORS])
def test_one_model_answers_to_any_name(
    speaking: LiveServer, path: str, body: dict[str, Any]
) -> None:
    answer = speaking.http.post(path, json=unstreamed(path, body, model="gpt-9"))
    told = "model 'gpt-9' is not served here: demo has answered"
    assert answer.json()["warnings"] == [told], answer.text
    if path not in ("/tokenize", "/v1/messages/count_tokens", "/api/embeddings"):
        assert answer.json()["model"] == ("gpt-9" if path.startswith("/api") else MODEL)
    assert speaking.http.get("/v1/models/gpt-9").status_code == 404
    assert speaking.http.post("/api/show", json={"model": "gpt-9"}).status_code == 404


def test_a_model_with_a_name_of_its_own_has_no_other() -> None:
    for settings in ({"served_model_name": [MODEL]}, {"strict_model_name": True}):
        with live_server(**{"strict_model_name": False, **settings}) as server:
            assert server.chat(model="gpt-9").status_code == 404


def test_a_penalty_of_the_last_tokens(speaking: LiveServer) -> None:
    seen: list[Any] = []
    speaking.executor.fail = lambda step: seen.extend(one.request.params for one in step.opened)
    penalty = {"repeat_penalty": 1.5, "presence_penalty": 0.5, "repeat_last_n": 64}
    for path, body in (
        ("/completion", {"prompt": "x", "n_predict": 2, **penalty}),
        ("/api/generate", {"prompt": "x", "options": {**penalty, "num_predict": 2}}),
    ):
        (warning,) = post(speaking, path, body)["warnings"]
        text = "the field repeat_last_n was left out: penalties are of the whole text"
        assert warning == text
    assert [one.repetition_penalty for one in seen] == [1.5, 1.5]
    off = post(speaking, "/completion", {"prompt": "x", **penalty, "repeat_last_n": 0})
    assert "warnings" not in off
    assert (seen[2].repetition_penalty, seen[2].presence_penalty) == (1.0, 0.0)


def test_a_context_above_what_there_is(speaking: LiveServer) -> None:
    for path in ("/api/generate", "/api/chat", "/api/embed"):
        body = {**dict(DOORS)[path], "options": {"num_ctx": 8192}}
        warnings = post(speaking, path, body)["warnings"] if path != "/api/embed" else (
            speaking.http.post(path, json={"model": MODEL, **body}).json()["warnings"])  # fmt: skip
        assert warnings == ["num_ctx is 256 (--max-model-len), not 8192"]
