"""Where steps give several tokens, every door tells what it tells where each gives one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest

from support.drafting import foreseen
from support.live_server import LiveServer
from support.speaking import SAID, WEATHER

ANTHROPIC_S = {"name": "weather", "input_schema": WEATHER["function"]["parameters"]}
RESPONSES_S = {"type": "function", **WEATHER["function"]}
ASK = [{"role": "user", "content": "hello"}]
DOORS: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("/v1/completions", {
        "prompt": "Once", "n": 2, "logprobs": 2, "return_token_ids": True, "max_tokens": 200,
        "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"prompt": ["Once", "Twice"], "max_tokens": 50}),
    ("/v1/chat/completions", {
        "messages": ASK, "tools": [WEATHER], "logprobs": True, "top_logprobs": 2, "n": 2,
        "return_token_ids": True, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {"messages": ASK, "stop": ["Paris"]}),
    ("/v1/responses", {"input": "hello", "tools": [RESPONSES_S]}),
    ("/v1/responses", {"input": "hello", "tools": [RESPONSES_S], "top_logprobs": 2,
                       "include": ["message.output_text.logprobs"]}),
    ("/v1/messages", {"messages": ASK, "tools": [ANTHROPIC_S], "max_tokens": 200}),
    ("/v1/messages", {"messages": ASK, "max_tokens": 200, "stop_sequences": ["eather"]}),
    ("/api/chat", {"model": "demo", "messages": ASK, "tools": [WEATHER], "logprobs": True}),
    ("/api/generate", {"model": "demo", "prompt": "hello", "raw": True}),
    ("/completion", {"prompt": "hello", "n_probs": 2}),
    ("/v1/sessions/{}/generate", {"max_tokens": 200, "logprobs": 1, "return_token_ids": True}),
)  # fmt: skip


TEXTS = {"content", "text", "reasoning", "reasoning_content", "arguments", "thinking",
         "partial_json", "delta", "response"}  # fmt: skip
LISTS = {"tokens", "token_logprobs", "text_offset", "completion_probabilities",
         "top_logprobs", "logprobs"}  # fmt: skip
OWN = {"id", "created", "created_at", "completed_at", "item_id", "sequence_number", "timings",
       "call_id", "total_duration", "prompt_eval_duration", "eval_duration",
       "cached_tokens", "cache_read_input_tokens", "input_tokens"}  # fmt: skip


def put_together(told: dict[str, Any], value: Any, path: str = "", key: str = "") -> None:
    """What a stream's values come to: texts and lists grow, of the rest the last one counts."""
    scored = path.endswith("logprobs.content")
    if isinstance(value, dict):
        where = "".join(f"[{value[name]}]" for name in ("type", "index") if name in value)
        for name in value.keys() - OWN:
            put_together(told, value[name], f"{path}{where}.{name}", name)
    elif isinstance(value, list) and (key in LISTS or key.endswith("token_ids") or scored):
        told[path] = [*told.get(path, []), *value]
    elif isinstance(value, list):
        for number, item in enumerate(value):
            put_together(told, item, path if "index" in item else f"{path}[{number}]")
    elif isinstance(value, str) and key in TEXTS:
        told[path] = told.get(path, "") + value
    elif value is not None:
        told[path] = value


def streamed(server: LiveServer, path: str, body: Mapping[str, Any]) -> list[Any]:
    if "{}" in path:
        session = server.http.post("/v1/sessions", json={}).json()["id"]
        path = path.format(session)
        server.http.post(path.replace("generate", "append"), json={"input": "Once"})
    answer: httpx.Response = server.http.post(path, json={**body, "stream": True})
    if "session" in path:
        server.http.delete(path.removesuffix("/generate"))
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    return [json.loads(line) for line in lines if line[:1] == "{"]


@pytest.mark.parametrize(("path", "body"), DOORS, ids=lambda value: str(value)[:40])
def test_a_stream_comes_to_the_same(
    speaking: LiveServer, path: str, body: Mapping[str, Any]
) -> None:
    speaking.script(SAID.replace("I look", "A 🦊, 漢字"))
    plain: dict[str, Any] = {}
    drafted: dict[str, Any] = {}
    one_by_one = streamed(speaking, path, body)
    with foreseen(speaking) as drafts:
        together = streamed(speaking, path, body)
    for told, values in ((plain, one_by_one), (drafted, together)):
        for value in values:
            put_together(told, value)
    assert drafted == plain
    assert drafts.accepted > 4
    each_alone = "include" in body  # to tell which of the tokens are of the text
    assert (len(together) < len(one_by_one)) == (not each_alone)


def test_llama_cpp_s_timings_tell_of_drafts(speaking: LiveServer) -> None:
    speaking.script(SAID)
    with foreseen(speaking) as drafts:
        timings = speaking.http.post("/completion", json={"prompt": "hello"}).json()["timings"]
    assert timings["draft_n"] == drafts.drafted > timings["draft_n_accepted"] == drafts.accepted
    timings = speaking.http.post("/completion", json={"prompt": "hello"}).json()["timings"]
    assert "draft_n" not in timings
