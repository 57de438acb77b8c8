"""Tools and reasoning in chats: from the caller's fields to the prompt, from the text to fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.live_server import MODEL, LiveServer, events, eventually, live_server
from support.speaking import SAID, TEMPLATE, WEATHER, written


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
        f"<|assistant|><think>hm</think>{written()}<|end|>"
        "<|tool|>hot<|end|><|assistant|>",
        "<|user|>weather?<|end|><|assistant|><think></think>",
    ]


def test_each_choice_has_a_parser_of_its_own(speaking: LiveServer) -> None:
    speaking.script(SAID)
    body = {"tools": [WEATHER], "n": 2, "logprobs": True}
    whole = speaking.chat(**body).json()["choices"]
    names = [[call["function"]["name"] for call in one["message"]["tool_calls"]] for one in whole]
    assert names == [["weather", "weather"]] * 2
    told: list[list[Any]] = [[], []]
    scored = [0, 0]
    for chunk in events(speaking.chat(stream=True, **body)):
        (choice,) = chunk["choices"]
        told[choice["index"]] += choice["delta"].get("tool_calls", [])
        scored[choice["index"]] += len((choice.get("logprobs") or {"content": []})["content"])
    assert [sum("id" in call for call in calls) for calls in told] == [2, 2]
    assert scored == [len(one["logprobs"]["content"]) for one in whole], "a token is lost"


def test_what_a_caller_may_ask_of_calls_and_reasoning(speaking: LiveServer) -> None:
    speaking.script(SAID)
    one = speaking.chat(tools=[WEATHER], parallel_tool_calls=False).json()["choices"][0]["message"]
    assert len(one["tool_calls"]) == 1
    silent = speaking.chat(tools=[WEATHER], include_reasoning=False).json()["choices"][0]["message"]
    assert silent["reasoning"] is None and silent["content"] == "I look."
    for body in ({"tools": [WEATHER], "tool_choice": "none"}, {}):
        (choice,) = speaking.chat(**body).json()["choices"]
        assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"
        assert choice["message"]["content"] == SAID.partition("</think>\n\n")[2]
    cut = speaking.chat(tools=[WEATHER], stop="Paris").json()["choices"][0]
    assert cut["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "'
    assert cut["stop_reason"] == "Paris"
    most = len(speaking.script(SAID)) - 12
    short = speaking.chat(tools=[WEATHER], max_tokens=most).json()["choices"][0]
    assert short["finish_reason"] == "length" and short["message"]["tool_calls"]


NAME = "tools[0].function.name"
CHOICE: Any = {"type": "function", "function": {"name": "other"}}


def tool(**changes: Any) -> dict[str, Any]:
    return {"type": "function", "function": {**WEATHER["function"], **changes}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [tool(name="")]}, NAME),
    ({"tools": [tool(name="a b")]}, NAME),
    ({"tools": [tool(name="a" * 65)]}, NAME),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
    ({"tools": [tool(name=f"f{i}") for i in range(513)]}, "tools"),
    ({"tools": [{"type": "custom"}]}, "tools[0].type"),
    ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
    ({"tools": [tool(parameters={"type": "array"})]}, "tools[0].function.parameters"),
    (
        {"tools": [tool(parameters={"properties": 1})]},
        "tools[0].function.parameters.properties",
    ),
    ({"tools": [WEATHER], "tool_choice": CHOICE}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    (
        {"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}},
        "response_format",
    ),
    (
        {
            "tools": [WEATHER],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "structured_outputs": {"choice": ["a"]},
        },
        "structured_outputs",
    ),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "", "tool_calls": []}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "tool", "tool_call_id": "x"}]}, "messages[0].content"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": ""}}]}]},
        "messages[0].tool_calls[0].function.name",
    ),
    ({"reasoning_effort": "much"}, "reasoning_effort"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED)
def test_what_cannot_be_is_refused_by_name(
    speaking: LiveServer, body: dict[str, Any], param: str
) -> None:
    answer = speaking.chat(**body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text


def test_a_model_whose_calls_nobody_knows_takes_no_tools() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with live_server({"chat_template": template}) as server:
        refused = server.chat(tools=[WEATHER])
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "tools"
        assert server.chat(tools=[WEATHER], tool_choice="none", max_tokens=1).status_code == 200
        budget = server.chat(thinking_token_budget=5).json()["error"]
        assert budget["param"] == "thinking_token_budget"


# In the manner of Mistral's, whose marks are special tokens; <|user|> stands for one of them.
MISTRAL = (
    "{% for m in messages %}{% if m.tool_call_id is defined %}{% if m.tool_call_id | length != 9 %}"
    "{{ raise_exception('ids have 9 characters') }}{% endif %}{{ '<id>' + m.tool_call_id }}"
    "{% endif %}{% for call in m.tool_calls %}{{ '<id>' + call.id }}{% endfor %}{{ m.content }}"
    "{% endfor %}{# [TOOL_CALLS] #}"
)


def test_ids_are_as_the_template_wants_them() -> None:
    with live_server({"chat_template": MISTRAL}) as server:
        server.script('[TOOL_CALLS][{"name": "weather", "arguments": {}}]')
        (choice,) = server.chat(tools=[WEATHER]).json()["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert len(call["id"]) == 9 and call["id"].isalnum()
        call["id"] = "call_of_another_server"
        prompts = []
        server.executor.fail = lambda step: prompts.extend(
            server.tokenizer.decode(one.request.prompt_token_ids) for one in step.opened
        )
        told = {"role": "tool", "tool_call_id": call["id"], "content": "hot"}
        assert server.chat(messages=[choice["message"], told]).status_code == 200
        _, first, second = prompts[0].split("<id>")
        assert len(first) == 9 and second == first + "hot"
        eventually(server.is_idle)
