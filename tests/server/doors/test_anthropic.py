"""Anthropic's Messages by hand; `make test-clients` has its own client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.live_server import MODEL, LiveServer, live_server
from support.speaking import SAID, WEATHER, written

TOOL = {
    "name": "weather",
    "description": "of a city",
    "input_schema": WEATHER["function"]["parameters"],
}
MESSAGES = [{"role": "user", "content": "hello"}]


def ask(server: LiveServer, **body: Any) -> Any:
    body = {"model": MODEL, "max_tokens": 150, "messages": MESSAGES, **body}
    return server.http.post("/v1/messages", json=body)


def streamed(server: LiveServer, **body: Any) -> list[Any]:
    """The events of a stream, each of which is named by its type."""
    events = ask(server, stream=True, **body).text.strip().split("\n\n")
    named = [event.split("\n") for event in events]
    values = [json.loads(data.removeprefix("data: ")) for _, data in named]
    assert [name for name, _ in named] == [f"event: {value['type']}" for value in values]
    return values


def put_together(events: list[Any]) -> Any:
    """The message that events come to, by the rules of Anthropic's client."""
    start, ping, *others, change, stop = events
    assert (start["type"], ping["type"]) == ("message_start", "ping")
    assert (change["type"], stop["type"]) == ("message_delta", "message_stop")
    message = start["message"]
    texts: dict[int, str] = {}
    for event in others:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(message["content"]) and index not in texts
                message["content"].append(block)
                texts[index] = ""
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                assert index == len(message["content"]) - 1
                kind, *_ = delta.keys() - {"type"}
                texts[index] += delta[kind]
            case {"type": "content_block_stop", "index": index}:
                block = message["content"][index]
                name = {"tool_use": "input"}.get(block["type"], block["type"])
                block[name] = json.loads(texts[index]) if name == "input" else texts[index]
    return {**message, **change["delta"], "usage": change["usage"]}


def test_a_stream_comes_to_what_the_whole_message_says(speaking: LiveServer) -> None:
    speaking.script(SAID)
    whole = ask(speaking, tools=[TOOL]).json()
    thinking, text, *calls = whole["content"]
    assert thinking == {
        "type": "thinking", "thinking": "The user wants weather.", "signature": "",
    }  # fmt: skip
    assert text == {"type": "text", "text": "I look."}
    assert [(call["name"], call["input"]) for call in calls] == [
        ("weather", {"city": "Paris"}),
        ("weather", {}),
    ]
    assert (whole["stop_reason"], whole["role"], whole["type"]) == (
        "tool_use", "assistant", "message",
    )  # fmt: skip
    message = put_together(streamed(speaking, tools=[TOOL]))
    ids = [call.pop("id") for one in (whole, message) for call in one["content"] if "id" in call]
    assert len({*ids}) == 4 and all(one.startswith("toolu_") for one in ids)
    for one in (whole, message):
        del one["id"], one["usage"]["input_tokens"], one["usage"]["cache_read_input_tokens"]
    assert message == whole


def test_why_it_stopped(speaking: LiveServer) -> None:
    speaking.script("A tale of foxes.")
    assert ask(speaking).json()["stop_reason"] == "end_turn"
    assert ask(speaking, max_tokens=1).json()["stop_reason"] == "max_tokens"
    stopped = ask(speaking, stop_sequences=["fox"]).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "fox")
    assert stopped["content"][0]["text"] == "A tale of "


def test_a_history_is_rendered_by_the_template(speaking: LiveServer, prompts: list[str]) -> None:
    text = {"type": "text", "text": "weather?", "cache_control": {"type": "ephemeral"}}
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "hot"}
    thinking = {"type": "thinking", "thinking": "hm", "signature": "x"}
    ask(
        speaking,
        system=[{"type": "text", "text": "Be brief."}],
        messages=[
            {"role": "user", "content": [text]},
            {"role": "assistant", "content": [thinking, {"type": "text", "text": "well"}, call]},
            {"role": "user", "content": [
                {"type": "text", "text": "so"}, result, {"type": "text", "text": "and now?"},
            ]},
        ],
        thinking={"type": "disabled"},
        max_tokens=1,
    )  # fmt: skip
    assert prompts == [
        "<|system|>Be brief.<|end|><|user|>weather?<|end|><|assistant|>well<think>hm</think>"
        f"{written()}<|end|><|user|>so<|end|><|tool|>hot<|end|>"
        "<|user|>and now?<|end|>"
        "<|assistant|><think></think>"
    ]


def test_the_assistant_s_last_words_are_gone_on_with(
    speaking: LiveServer, prompts: list[str]
) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "Well, I"}]
    ask(speaking, messages=begun, max_tokens=1)
    body = {"model": MODEL, "messages": begun, "options": {"num_predict": 1}}
    speaking.http.post("/api/chat", json=body)
    assert prompts == ["<|user|>hello<|end|><|assistant|>Well, I"] * 2


def test_tools_are_told_and_one_may_be_asked_for(speaking: LiveServer, prompts: list[str]) -> None:
    ask(speaking, tools=[TOOL], max_tokens=1)
    assert prompts[0].startswith("TOOLS") and json.dumps(TOOL["description"]) in prompts[0]
    speaking.script(SAID)
    once = {"type": "auto", "disable_parallel_tool_use": True}
    kinds = [
        block["type"] for block in ask(speaking, tools=[TOOL], tool_choice=once).json()["content"]
    ]
    assert kinds == ["thinking", "text", "tool_use"]
    none = ask(speaking, tools=[TOOL], tool_choice={"type": "none"}).json()
    assert [block["type"] for block in none["content"]] == ["thinking", "text"]


def test_what_is_asked_for_reaches_the_engine(speaking: LiveServer) -> None:
    seen: list[Any] = []
    speaking.executor.fail = lambda step: seen.extend(one.request.params for one in step.opened)
    schema = {"type": "object", "properties": {}}
    ask(
        speaking, temperature=0.5, top_p=0.9, top_k=5, max_tokens=20, stop_sequences=["zz"],
        thinking={"type": "enabled", "budget_tokens": 7}, metadata={"user_id": "x" * 999},
        output_config={"format": {"type": "json_schema", "schema": schema}, "effort": "low"},
    )  # fmt: skip
    (params,) = seen
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.9, 5)
    assert (params.max_tokens, params.stop, params.thinking_token_budget) == (20, ("zz",), 7)
    assert json.loads(params.structured_outputs.json) == schema


def test_no_thoughts_are_asked_of_a_model_that_has_none() -> None:
    thinking = {"type": "enabled", "budget_tokens": 50}
    with live_server() as server:
        answer = ask(server, thinking=thinking, max_tokens=4)
        assert answer.json()["warnings"] == ["thinking was left out: this model does not reason"]
        start, *_ = streamed(server, thinking=thinking, max_tokens=4)
        assert start["message"]["warnings"] == answer.json()["warnings"]
    with live_server(strict_fields=True) as server:
        refused = ask(server, thinking=thinking, max_tokens=4).json()["error"]
        assert refused["message"].startswith("thinking.budget_tokens: this model does not reason")


def test_tokens_are_counted_as_they_are_charged(speaking: LiveServer) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "system": "Be brief.", "tools": [TOOL]}
    counted = speaking.http.post("/v1/messages/count_tokens", json=body).json()
    for _ in range(2):  # the second time most of it is found in the cache
        usage = ask(speaking, **body, max_tokens=1).json()["usage"]
        read = usage["cache_read_input_tokens"]
        assert usage["input_tokens"] + read == counted["input_tokens"]
    assert read > 0 and usage["output_tokens"] == 1


@pytest.mark.parametrize("marked", [False, True])
def test_a_stream_counts_the_prompt_alike_at_both_ends(speaking: LiveServer, marked: bool) -> None:
    """Claude Code keeps what message_start says of whatever is 0 in message_delta."""
    system = {"type": "text", "text": f"Be brief. {marked} " * 20}
    last = {"type": "text", "text": "Hello."}
    if marked:
        last["cache_control"] = {"type": "ephemeral"}
    body = {"system": [system], "messages": [{"role": "user", "content": [last]}], "max_tokens": 2}
    found = []
    for _ in range(2):
        start, *_, change, _ = streamed(speaking, **body)
        names = [name for name in start["message"]["usage"] if name.endswith("input_tokens")]
        assert len(names) == 3
        begun = {name: start["message"]["usage"][name] for name in names}
        assert begun == {name: change["usage"][name] for name in names}
        found.append(begun["cache_read_input_tokens"])
    assert found[1] > found[0]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0]"),
        (
            {"messages": [{"role": "assistant", "content": [
                {"type": "tool_result", "tool_use_id": "x"}]}]},
            "tool_result",
        ),
        ({"system": 5}, "system"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"name": "x"}]}, "input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "two words", "input_schema": {}}]}, "tools[0]"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "cook"}}, "cook"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
         "output_config.format"),
        ({"container": "x"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"n": 2}, "n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [True, False])
def test_bad_bodies(speaking: LiveServer, body: Any, named: str, stream: bool) -> None:
    response = ask(speaking, stream=stream, **body)
    assert response.status_code == 400, response.text
    answer = response.json()
    assert answer.keys() == {"type", "error"} and answer["type"] == "error"
    assert answer["error"]["type"] == "invalid_request_error"
    assert named in answer["error"]["message"]


def test_errors_have_anthropic_s_types(speaking: LiveServer) -> None:
    for response, status, kind in [
        (ask(speaking, model="claude-9"), 404, "not_found_error"),
        (speaking.http.get("/v1/messages"), 405, "invalid_request_error"),
        (speaking.http.post("/v1/messages/batches", json={}), 404, "not_found_error"),
    ]:
        assert (response.status_code, response.json()["error"]["type"]) == (status, kind)
    with live_server(api_key=["secret"]) as guarded:
        refused = ask(guarded)
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
        body = {"model": MODEL, "max_tokens": 1, "messages": MESSAGES}
        headers = {"x-api-key": "secret", "anthropic-version": "2023-06-01"}
        allowed = guarded.http.post("/v1/messages", json=body, headers=headers)
        assert allowed.status_code == 200
