"""The API's description: valid, whole, and of what is really answered; a page of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from quire.http.errors import ErrorAnswer
from quire.http.models import ModelCard, ModelList
from quire.http.openai.answers import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
)
from quire.http.operation import Version
from quire.http.sessions import ClosedSession, SessionCard, SessionList, SessionWithEvents
from support.described import Described, as_described
from support.live_server import MODEL, LiveServer, events, scripted_engine

OWN = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics")


def described(**settings: Any) -> dict[str, Any]:
    document = create_app(scripted_engine()[0], [MODEL], ServerConfig(**settings)).openapi()
    validate(document)
    return document


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(path, one) for path, kinds in document["paths"].items() for one in kinds.values()]


def test_everything_is_told_of_every_route() -> None:
    document = described()
    schemas = document["components"]["schemas"]
    ids = []
    for path, operation in operations(document):
        ids.append(operation["operationId"])
        assert operation["description"] and "422" not in operation["responses"]
        for status, response in operation["responses"].items():
            assert response["description"]
            for media, content in response.get("content", {}).items():
                assert content["schema"] or path not in OWN, (path, status, media)
        if "requestBody" in operation:
            assert {"400", "404", "408", "413", "415", "429", "500", "503"} <= operation[
                "responses"].keys()  # fmt: skip
    assert len(ids) == len(set(ids)) and all(re.fullmatch("[a-z0-9_]+", one) for one in ids)
    for name in re.findall(r"#/components/schemas/(\w+)", str(document)):
        assert name in schemas
    assert not [name for name in schemas if "__" in name], "two types of one name"
    for name in ("CompletionRequest", "ChatRequest"):
        undescribed = [field for field, told in schemas[name]["properties"].items()
                       if not told.get("description")]  # fmt: skip
        assert not undescribed
    stream = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert stream["text/event-stream"]["schema"]["x-event"]["$ref"].endswith("ChatCompletionChunk")


def bodies(document: dict[str, Any]) -> Iterator[tuple[str, Draft202012Validator, dict[str, Any]]]:
    """The path, the schema of its body, and the schema's own text."""
    for path, operation in operations(document):
        if "requestBody" in operation:
            reference = operation["requestBody"]["content"]["application/json"]["schema"]
            name = reference["$ref"].rpartition("/")[2]
            whole = {**reference, "components": document["components"]}
            yield path, Draft202012Validator(whole), document["components"]["schemas"][name]


def test_null_is_taken_where_it_is_told_so(shared: LiveServer) -> None:
    """A field that is null is absent: no schema forbids it, and no door does."""
    document = shared.http.get("/openapi.json").json()
    for path, fits, schema in bodies(document):
        needed = schema.get("required", [])
        nulls = {name: None for name in schema["properties"] if name not in needed}
        assert [error for error in fits.iter_errors(nulls) if error.json_path != "$"] == [], path
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/completion", {"prompt": "x"}),
        ("/api/generate", {"model": MODEL, "prompt": "x", "stream": False}),
    ):
        schema = next(one for where, _, one in bodies(document) if where == path)
        told = dict.fromkeys(schema["properties"])
        assert shared.http.post(path, json={**told, **body}).status_code == 200, path


def test_what_changes_nothing_passes_and_is_told_so(shared: LiveServer) -> None:
    document = shared.http.get("/openapi.json").json()
    ask: dict[str, Any] = {"model": MODEL, "prompt": "x", "max_tokens": 1}
    fits = next(one for path, one, _ in bodies(document) if path == "/v1/completions")
    for more, passes in (
        ({"store": True, "metadata": {"a": "b"}, "tools": [], "modalities": ["text"]}, True),
        ({"store": 1}, False),
        ({"tools": [{}]}, False),
        ({"stored": True}, False),
    ):
        assert fits.is_valid({**ask, **more}) is passes, more
        answered = shared.http.post("/v1/completions", json={**ask, **more}).status_code
        assert (answered == 200) is passes, more
    options = {"mirostat": 0, "num_thread": 4, "temperature": None}
    chat = {"model": MODEL, "prompt": "x", "stream": False, "options": options}
    fits = next(one for path, one, _ in bodies(document) if path == "/api/generate")
    assert fits.is_valid(chat) and not fits.is_valid({**chat, "options": {"mirostat": 1}})
    assert shared.http.post("/api/generate", json=chat).status_code == 200


def test_an_answer_that_is_not_told_of_is_found(shared: LiveServer) -> None:
    """What every other test's answers are compared by."""
    app = create_app(scripted_engine()[0], [MODEL], ServerConfig())
    check = Described(app).check

    def answer(status: int, body: Any, path: str = "/embedding") -> httpx.Response:
        return httpx.Response(status, json=body, request=httpx.Request("POST", shared.url + path))

    check(answer(200, [{"index": 0, "embedding": [[0.5]]}]))
    check(answer(400, {"error": {"code": 400, "message": "x", "type": "y"}}))
    for wrong in (
        answer(200, {"index": 0, "embedding": [[0.5]]}),
        answer(200, [{"index": 0, "embedding": [["x"]]}]),
        answer(418, {}),
        answer(400, {"error": "x"}),
        answer(200, {}, "/v1/chat/completions"),
    ):
        with pytest.raises(AssertionError):
            check(wrong)


def test_routes_that_take_parameters_tell_that_they_refuse_some() -> None:
    document = described()
    for path, operation in operations(document):
        assert {"500", "503"} <= operation["responses"].keys(), path
        if operation.get("parameters"):
            assert "400" in operation["responses"], path
    for path in ("/pooling", "/classify", "/v1/classify"):
        assert "400" in document["paths"][path]["post"]["responses"]


def test_what_needs_a_key_says_so() -> None:
    assert "security" not in described()
    document = described(api_key=["a"], api_key_metrics=True)
    assert document["security"] == [{"key": []}]
    for path, operation in operations(document):
        is_open = path in ("/", "/health", "/v1/health", "/ping", "/version")
        assert (operation.get("security") == []) is is_open
        assert ("401" in operation["responses"]) is not is_open


def test_answers_are_as_they_are_described(shared: LiveServer) -> None:
    ask: dict[str, Any] = {"max_tokens": 300, "include_metrics": True, "return_token_ids": True}
    options = {"stream": True, "stream_options": {"include_usage": True,
                                                  "continuous_usage_stats": True}}  # fmt: skip
    completion: dict[str, Any] = {**ask, "prompt": "x", "logprobs": 1}
    chat: dict[str, Any] = {**ask, "logprobs": True, "top_logprobs": 2}
    for kind, answer in [
        (Completion, shared.complete(**completion, echo=True, prompt_logprobs=1)),
        (ChatCompletion, shared.chat(**chat, prompt_logprobs=0)),
        (ErrorAnswer, shared.complete(prompt="")),
        (ErrorAnswer, shared.http.get("/nothing")),
        (ModelList, shared.http.get("/v1/models")),
        (ModelCard, shared.http.get(f"/v1/models/{MODEL}")),
        (Version, shared.http.get("/version")),
    ]:
        as_described(kind, answer.content)
    for chunk in events(shared.complete(**completion, **options)):
        as_described(CompletionChunk, json.dumps(chunk))
    for chunk in events(shared.chat(**chat, **options)):
        as_described(ChatCompletionChunk, json.dumps(chunk))


def test_sessions_are_as_they_are_described(shared: LiveServer) -> None:
    session = as_described(SessionCard, shared.http.post("/v1/sessions", json={}).content)
    path = f"/v1/sessions/{session.id}"

    def post(verb: str, **body: Any) -> httpx.Response:
        return shared.http.post(f"{path}/{verb}", json=body)

    as_described(SessionCard, post("append", input="x").content)
    as_described(Completion, post("generate", max_tokens=2).content)
    as_described(SessionList, shared.http.get("/v1/sessions").content)
    as_described(SessionWithEvents, shared.http.get(path).content)
    as_described(ClosedSession, shared.http.delete(path).content)


def test_a_page_tells_it_without_anything_from_elsewhere(shared: LiveServer) -> None:
    page, document = shared.http.get("/docs"), shared.http.get("/openapi.json").json()
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"<script|(src|href)=\"?(https?:)?//|@import|url\(", page.text)
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page.text
    for name, schema in document["components"]["schemas"].items():
        assert f"<details id={name}>" in page.text
        assert all(f"<code>{field}</code>" in page.text for field in schema.get("properties", ()))
    for anchor in re.findall(r'href="#(\w+)"', page.text):
        assert f"<details id={anchor}>" in page.text


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
def test_it_can_be_left_out(path: str) -> None:
    app = create_app(scripted_engine()[0], [MODEL], ServerConfig(disable_fastapi_docs=True))
    assert path not in [getattr(route, "path", "") for route in app.routes]
