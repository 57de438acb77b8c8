"""What is null and what is left out: fields that vLLM always sends, and OpenAI's own schema.

The first are attributes of OpenAI's client only where they are sent. The second allows no null for
some of its fields: they are there, or they are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.live_server import MODEL, LiveServer, events
from support.speaking import SAID, WEATHER

TRANSFER = ("kv_transfer_params", "ec_transfer_params")
# vLLM 0.32: its models' fields that have a default, but for those that OpenAI does not let be null.
ALWAYS = {
    "completion": (*TRANSFER, "service_tier", "metrics"),
    "completion.choice": (
        "stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids", "routed_experts",
        "logprobs",
    ),
    "completion.chunk.choice": (
        "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"
    ),
    "chat": (
        *TRANSFER, "service_tier", "metrics", "prompt_logprobs", "prompt_token_ids", "prompt_text"
    ),
    "chat.choice": ("logprobs", "stop_reason", "token_ids", "routed_experts"),
    "chat.message": ("refusal", "audio", "reasoning"),
    "chat.chunk.choice": ("logprobs", "finish_reason", "token_ids"),
    "response": (
        *TRANSFER, "incomplete_details", "instructions", "max_tool_calls", "previous_response_id",
        "prompt", "input_messages", "output_messages",
    ),
}  # fmt: skip
# OpenAI's schema: by the last names of their paths, fields that may be left out and not be null.
NEVER_NULL = {
    "system_fingerprint", "choices", "tool_calls", "function_call", "annotations",
    "prompt_tokens_details", "completion_tokens_details", "delta.role", "text", "format",
    "format.description", "response.usage", "response.user", "status", "output", "tools",
    "part.logprobs", "item.content", "item.summary", "item.status", "namespace", "defer_loading",
}  # fmt: skip

HELLO: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


def nulls(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if value is None:
        yield path
    for name, item in value.items() if isinstance(value, dict) else ():
        yield from nulls(item, (*path, name))
    for item in value if isinstance(value, list) else ():
        yield from nulls(item, path)


def forbidden(value: Any, name: str) -> list[str]:
    found = [".".join((name, *path)[-2:]) for path in nulls(value)]
    return [path for path in found if path in NEVER_NULL or path.split(".")[-1] in NEVER_NULL]


def test_openai_s_client_finds_what_vllm_always_sends(shared: LiveServer) -> None:
    completion = shared.openai.completions.create(model=MODEL, prompt="x", max_tokens=3)
    chat = shared.openai.chat.completions.create(**HELLO)
    response = shared.openai.responses.create(model=MODEL, input="x", max_output_tokens=400)
    told = {
        "completion": completion,
        "completion.choice": completion.choices[0],
        "chat": chat,
        "chat.choice": chat.choices[0],
        "chat.message": chat.choices[0].message,
        "response": response,
    }
    prompted: Any = {"model": MODEL, "prompt": "x", "max_tokens": 3, "stream": True}
    streams: Any = {
        "completion": shared.openai.completions.create(**prompted),
        "chat": shared.openai.chat.completions.create(**HELLO, stream=True),
    }
    chunks = {name: [*stream] for name, stream in streams.items()}
    for name, fields in ALWAYS.items():
        kind = name.removesuffix(".chunk.choice")
        places = [told[name]] if name in told else [one.choices[0] for one in chunks[kind]]
        for place in places:
            assert [field for field in fields if not hasattr(place, field)] == [], name
    assert chunks["chat"][0].prompt_token_ids is None
    assert chat.choices[0].message.reasoning is None  # type: ignore[attr-defined]


def test_prompt_log_probabilities_of_a_chat_stand_beside_its_choices(shared: LiveServer) -> None:
    """As in vLLM: there is one prompt, however many choices."""
    answer = shared.chat(prompt_logprobs=1, max_tokens=1, n=2).json()
    first, *others = answer["prompt_logprobs"]
    assert first is None and len(others) + 1 == answer["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in answer["choices"][0]


@pytest.mark.parametrize("more", [
    {},
    {"user": None, "metadata": None, "text": {"format": {"type": "text"}}},
    {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}},
    {"tools": [{"type": "function", "name": "weather"}], "tool_choice": "none"},
])  # fmt: skip
def test_no_response_has_a_null_that_openai_s_schema_forbids(
    shared: LiveServer, more: dict[str, Any]
) -> None:
    body = {"model": MODEL, "input": "x", "max_output_tokens": 3, **more}
    whole = shared.http.post("/v1/responses", json=body).json()
    assert forbidden(whole, "response") == []
    kept = shared.http.get(f"/v1/responses/{whole['id']}").json()
    assert kept == whole
    text = shared.http.post("/v1/responses", json={**body, "stream": True}).text
    for event in text.strip().split("\n\n"):
        line = event.splitlines()[-1]
        assert forbidden(json.loads(line.removeprefix("data: ")), "event") == []


def test_no_completion_nor_chat_has_one_either(shared: LiveServer) -> None:
    for ask in (shared.chat, lambda **more: shared.complete(prompt="x", **more)):
        assert forbidden(ask(max_tokens=3).json(), "whole") == []
        for options in (None, {"include_usage": True}):
            for chunk in events(ask(max_tokens=3, stream=True, stream_options=options)):
                assert forbidden(chunk, "chunk") == []


def test_calls_have_none_either(speaking: LiveServer) -> None:
    speaking.script(SAID)
    whole = speaking.chat(tools=[WEATHER]).json()
    assert whole["choices"][0]["message"]["reasoning"] == "The user wants weather."
    assert forbidden(whole, "whole") == []
    for chunk in events(speaking.chat(tools=[WEATHER], stream=True)):
        assert forbidden(chunk, "chunk") == []
