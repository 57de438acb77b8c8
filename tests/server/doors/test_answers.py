"""What the doors answer is what /openapi.json says that they do."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from quire.http.doors.anthropic import CountedTokens, MessageAnswer, MessageEvent
from quire.http.doors.llama_cpp import LlamaCppAnswer, LlamaCppPiece, Props, Slot
from quire.http.doors.ollama import GeneratedAnswer, OllamaChatAnswer
from quire.http.doors.ollama_models import OllamaModels, OllamaVersion, ShownModel
from quire.http.doors.responses import CountedInput, DeletedResponse, InputItems
from quire.http.doors.responses_writer import ResponseAnswer, ResponseEvent
from quire.http.doors.tokens import Detokenized, Tokenized
from quire.http.errors import AnthropicErrorAnswer, LlamaCppErrorAnswer, OllamaErrorAnswer
from support.described import as_described
from support.live_server import MODEL, LiveServer
from support.speaking import SAID, WEATHER

CHAT = [{"role": "user", "content": "x"}]
TOOL = {"name": "weather", "input_schema": {}}
POSTS: list[tuple[Any, str, dict[str, Any]]] = [
    (Tokenized, "/tokenize", {"prompt": "x", "return_token_strs": True}),
    (Tokenized, "/tokenize", {"content": "x", "with_pieces": True}),
    (Detokenized, "/detokenize", {"tokens": [5]}),
    (ResponseAnswer, "/v1/responses", {"input": "x", "tools": [
        {"type": "function", **WEATHER["function"]}]}),
    (CountedInput, "/v1/responses/input_tokens", {"input": "x", "instructions": "Be brief."}),
    (MessageAnswer, "/v1/messages", {"messages": CHAT, "max_tokens": 99, "tools": [TOOL]}),
    (AnthropicErrorAnswer, "/v1/messages", {"messages": CHAT}),
    (CountedTokens, "/v1/messages/count_tokens", {"messages": CHAT}),
    (GeneratedAnswer, "/api/generate", {"prompt": "x", "stream": False, "logprobs": True}),
    (GeneratedAnswer, "/api/generate", {"stream": False}),
    (OllamaChatAnswer, "/api/chat", {"messages": CHAT, "stream": False, "tools": [WEATHER]}),
    (OllamaErrorAnswer, "/api/chat", {"messages": 5}),
    (ShownModel, "/api/show", {}),
    (LlamaCppAnswer, "/completion", {"prompt": "x", "n_probs": 1, "return_tokens": True}),
    (list[LlamaCppAnswer], "/completion", {"prompt": ["x", "y"]}),
    (LlamaCppErrorAnswer, "/completion", {"prompt": ""}),
]  # fmt: skip
STREAMS: list[tuple[Any, str, dict[str, Any]]] = [
    (ResponseEvent, "/v1/responses", {"input": "x", "stream": True}),
    (MessageEvent, "/v1/messages", {"messages": CHAT, "max_tokens": 99, "stream": True}),
    (GeneratedAnswer, "/api/generate", {"prompt": "x"}),
    (OllamaChatAnswer, "/api/chat", {"messages": CHAT, "tools": [WEATHER]}),
    ((LlamaCppPiece, LlamaCppAnswer), "/completion", {"prompt": "x", "stream": True}),
]
GETS: list[tuple[Any, str]] = [
    (OllamaVersion, "/api/version"),
    (OllamaModels, "/api/tags"),
    (OllamaModels, "/api/ps"),
    (Props, "/props"),
    (list[Slot], "/slots"),
]


def test_a_step_that_fails_is_told_by_the_last_event(speaking: LiveServer) -> None:
    def fail(step: object) -> None:
        raise RuntimeError("planted")

    for path, body, kind in (
        ("/v1/messages", {"messages": CHAT, "max_tokens": 99}, "api_error"),
        ("/v1/responses", {"input": "x"}, "error"),
        ("/completion", {"prompt": "x"}, "server_error"),
    ):
        speaking.executor.hold()
        speaking.executor.let(steps=1)
        asked = {"model": MODEL, "stream": True, **body}
        with speaking.http.stream("POST", path, json=asked) as response:
            speaking.executor.fail = fail
            speaking.executor.release()
            lines = [line.removeprefix("data: ") for line in response.iter_lines()]
        *events, last = [json.loads(line) for line in lines if line.startswith("{")]
        speaking.executor.fail = lambda step: None
        assert last.get("error", last)["type"] == kind
        if kind == "error":
            assert last["sequence_number"] == events[-1]["sequence_number"] + 1


def check(kind: Any, answer: httpx.Response) -> None:
    as_described(kind, answer.content)


def test_answers(speaking: LiveServer) -> None:
    speaking.script(SAID)
    for kind, path, body in POSTS:
        check(kind, speaking.http.post(path, json={"model": MODEL, **body}))
    for kind, path in GETS:
        check(kind, speaking.http.get(path))
    made = speaking.http.post("/v1/responses", json={"model": MODEL, "input": "x"}).json()["id"]
    check(ResponseAnswer, speaking.http.get(f"/v1/responses/{made}"))
    check(InputItems, speaking.http.get(f"/v1/responses/{made}/input_items"))
    check(DeletedResponse, speaking.http.delete(f"/v1/responses/{made}"))


@pytest.mark.parametrize(("kind", "path", "body"), STREAMS, ids=[path for _, path, _ in STREAMS])
def test_streams(speaking: LiveServer, kind: Any, path: str, body: dict[str, Any]) -> None:
    speaking.script(SAID)
    answer = speaking.http.post(path, json={"model": MODEL, **body})
    told = speaking.http.get("/openapi.json").json()["paths"][path]["post"]["responses"]["200"]
    (media,) = told["content"].keys() - {"application/json"}
    assert answer.headers["content-type"].startswith(media)
    kinds, event = kind if isinstance(kind, tuple) else (kind,), told["content"][media]["schema"]
    names = [one.rpartition("/")[2] for one in re.findall("#/[^']+", str(event["x-event"]))]
    assert names == [one.__name__ for one in kinds]
    data = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    *values, last = [line for line in data if line.startswith("{")]
    assert values
    for value in values:
        as_described(kinds[0], value)
    as_described(kinds[-1], last)
