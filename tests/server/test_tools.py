"""Tools and reasoning in chats: from the caller's fields to the prompt, from the text to fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.live_server import MODEL, LiveServer, events, eventually, live_server
from support.speaking import SAID, TEMPLATE, WEATHER


@pytest.fixture(scope="module")
def _speaking() -> Iterator[LiveServer]:
    with live_server({"chat_template": TEMPLATE}) as server:
        yield server


@pytest.fixture
def speaking(_speaking: LiveServer) -> Iterator[LiveServer]:
    yield _speaking
    eventually(_speaking.is_idle)


def streamed(server: LiveServer, **body: Any) -> tuple[dict[str, Any], list[str]]:
    """The message that a stream's deltas come to, by OpenAI's rules, and the finish reasons."""
    message: dict[str, Any] = {"reasoning": "", "content": "", "calls": []}
    reasons = []
    for chunk in events(server.chat(stream=True, **body)):
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        assert delta.get("reasoning") == delta.get("reasoning_content")
        message["reasoning"] += delta.get("reasoning") or ""
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(message["calls"]) and call["type"] == "function"
                assert call["function"]["arguments"] == ""
                message["calls"].append([call["function"]["name"], ""])
            else:
                message["calls"][call["index"]][1] += call["function"]["arguments"]
        reasons.append(choice["finish_reason"])
    return message, [reason for reason in reasons if reason]


def test_a_stream_comes_to_what_the_whole_answer_says(speaking: LiveServer) -> None:
    speaking.script(SAID)
    body = {"tools": [WEATHER]}
    (choice,) = speaking.chat(**body).json()["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"] == "I look."
    assert message["reasoning"] == message["reasoning_content"] == "The user wants weather."
    calls = [
        [call["function"]["name"], call["function"]["arguments"]] for call in message["tool_calls"]
    ]
    assert calls == [["weather", '{"city": "Paris"}'], ["weather", "{}"]]
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    said, reasons = streamed(speaking, **body)
    assert said == {"reasoning": message["reasoning"], "content": "I look.", "calls": calls}
    assert reasons == ["tool_calls"]


def test_the_openai_client_streams_calls(speaking: LiveServer) -> None:
    speaking.script(SAID)
    ask: Any = {"model": MODEL, "messages": [{"role": "user", "content": "?"}], "tools": [WEATHER]}
    with speaking.openai.chat.completions.stream(**ask) as stream:
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls is not None and [json.loads(call.function.arguments) for call in calls] == [
        {"city": "Paris"},
        {},
    ]


def test_a_history_of_calls_is_rendered_by_the_template(speaking: LiveServer) -> None:
    call = {"id": "call_1", "type": "function"}
    call["function"] = {"name": "weather", "arguments": '{"city": "Paris"}'}
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm"},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "hot"}]},
    ]
    speaking.script("x")
    prompts = []
    speaking.executor.fail = lambda step: prompts.extend(
        one.request.prompt_token_ids for one in step.opened
    )
    assert speaking.chat(messages=messages, tools=[WEATHER]).status_code == 200
    speaking.chat(messages=messages[:1], reasoning_effort="none")
    speaking.executor.fail = lambda step: None
    texts = [speaking.tokenizer.decode(ids, skip_special_tokens=False) for ids in prompts]
    told = json.dumps(WEATHER)
    assert texts == [
        f"TOOLS{told}call by <tool_call>{{...}}</tool_call><|user|>weather?<|end|>"
        '<|assistant|><think>hm</think><tool_call>weather{"city": "Paris"}<|end|>'
        "<|tool|>hot<|end|><|assistant|>",
        "<|user|>weather?<|end|><|assistant|><think></think>",
    ]
