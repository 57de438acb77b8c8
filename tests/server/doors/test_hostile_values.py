"""Nonsense of every kind, by the hundred kilobytes, in every field of every door's body."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from quire.http.doors.anthropic import CountTokensRequest, MessagesRequest
from quire.http.doors.llama_cpp import LlamaCppRequest
from quire.http.doors.ollama import (
    GenerateRequest,
    OllamaChatRequest,
    OllamaOptions,
)
from quire.http.doors.ollama_models import ShowRequest
from quire.http.doors.responses_requests import ResponsesRequest
from quire.http.doors.tokens import DetokenizeRequest, TokenizeRequest
from support.hostile_values import HOSTILE
from support.live_server import MODEL, LiveServer

CHAT = [{"role": "user", "content": "x"}]
ONE: Any = {"model": MODEL, "options": {"num_predict": 1}}
DOORS: list[tuple[str, dict[str, Any], type[BaseModel]]] = [
    ("/v1/responses", {"model": MODEL, "input": "x", "max_output_tokens": 1}, ResponsesRequest),
    ("/v1/messages", {"model": MODEL, "messages": CHAT, "max_tokens": 1}, MessagesRequest),
    ("/v1/messages/count_tokens", {"model": MODEL, "messages": CHAT}, CountTokensRequest),
    ("/api/generate", {**ONE, "prompt": "x"}, GenerateRequest),
    ("/api/chat", {**ONE, "messages": CHAT}, OllamaChatRequest),
    ("/api/show", {"model": MODEL}, ShowRequest),
    ("/completion", {"prompt": "x", "n_predict": 1}, LlamaCppRequest),
    ("/tokenize", {"prompt": "x"}, TokenizeRequest),
    ("/detokenize", {"tokens": [5]}, DetokenizeRequest),
]
# What changes no text passes whatever it is, but for the body's own bounds.
HINTS = {
    "cache_control", "citations", "client_metadata", "context_management", "diagnostics",
    "inference_geo", "keep_alive", "metadata", "prompt_cache_key", "prompt_cache_retention",
    "safety_identifier", "service_tier",
}  # fmt: skip
# What the engine bounds: texts may be too long, and a schema of anything is one.
ENGINE_S = {"prompt", "content", "input", "instructions", "messages", "system", "stop"}
ENGINE_S |= {"chat_template_kwargs", "format", "json_schema"}


def bodies(body: dict[str, Any], kind: type[BaseModel]) -> Iterator[tuple[str, str, str]]:
    """The name of a field, what is in it, and the body as JSON."""
    for name in [*kind.model_fields, "unknown"]:
        others = {key: value for key, value in body.items() if key != name}
        opening = json.dumps(others)[:-1] + (", " if others else "")
        for what, value in HOSTILE.items():
            yield name, what, f"{opening}{json.dumps(name)}: {value}}}"
    if "options" in kind.model_fields:
        for name in [*OllamaOptions.model_fields, "unknown"]:
            for what, value in HOSTILE.items():
                opening = json.dumps({**body, "options": {}})[:-2]
                yield name, what, f"{opening}{json.dumps(name)}: {value}}}}}"


@pytest.mark.parametrize(("path", "body", "kind"), DOORS, ids=[path for path, _, _ in DOORS])
def test_hostile_values_are_refused_in_few_words(
    shared: LiveServer, path: str, body: dict[str, Any], kind: type[BaseModel]
) -> None:
    headers = {"content-type": "application/json"}
    for name, what, content in bodies(body, kind):
        answer = shared.http.post(path, content=content, headers=headers)
        if (path, name) == ("/api/show", "name"):
            continue  # what model was called once, and here it is there
        if answer.status_code == 200:
            assert name in HINTS | ENGINE_S, (name, what)
            continue
        assert 400 <= answer.status_code < 500, (name, what, answer.text[:500])
        assert len(answer.content) < 1500, (name, what)
