"""The API's description: valid, whole, and of what is really answered; a page of it."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from openapi_spec_validator import validate

from quire.config import ServerConfig
from quire.server import create_app
from quire.server.description.answer_types import (
    ChatCompletion,
    ChatCompletionChunk,
    ClosedSession,
    Completion,
    CompletionChunk,
    ErrorAnswer,
    ModelCard,
    ModelList,
    SessionCard,
    SessionList,
    SessionWithEvents,
    Version,
)
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


def test_what_needs_a_key_says_so() -> None:
    assert "security" not in described()
    document = described(api_key=["a"], api_key_metrics=True)
    assert document["security"] == [{"key": []}]
    for path, operation in operations(document):
        is_open = path in ("/", "/health", "/ping", "/version")
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
        kind.model_validate_json(answer.content)
    for chunk in events(shared.complete(**completion, **options)):
        CompletionChunk.model_validate(chunk)
    for chunk in events(shared.chat(**chat, **options)):
        ChatCompletionChunk.model_validate(chunk)


def test_sessions_are_as_they_are_described(shared: LiveServer) -> None:
    session = SessionCard.model_validate(shared.http.post("/v1/sessions", json={}).json())
    path = f"/v1/sessions/{session.id}"

    def post(verb: str, **body: Any) -> httpx.Response:
        return shared.http.post(f"{path}/{verb}", json=body)

    SessionCard.model_validate(post("append", input="x").json())
    Completion.model_validate(post("generate", max_tokens=2).json())
    SessionList.model_validate(shared.http.get("/v1/sessions").json())
    SessionWithEvents.model_validate(shared.http.get(path).json())
    ClosedSession.model_validate(shared.http.delete(path).json())


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
