"""Tools of responses that are no plain functions: namespaces, custom tools, and OpenAI's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from quire.http.chats.speech import ToolChoice
from quire.http.doors.responses_requests import ResponsesRequest
from quire.http.doors.responses_tools import CustomTool, Offered
from support.live_server import MODEL, LiveServer, live_server
from support.speaking import TEMPLATE, WEATHER, written

NO_ARGUMENTS = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
FUNCTION: Any = {"type": "function", "strict": False, **WEATHER["function"]}
NAMESPACE: Any = {
    "type": "namespace",
    "name": "agents",
    "description": "Helpers.",
    "tools": [
        {"type": "function", "name": "close", "strict": False, "parameters": NO_ARGUMENTS},
        {"type": "custom", "name": "tell", "description": "anything"},
    ],
}
CUSTOM: Any = {"type": "custom", "name": "note", "format": {"type": "text"}}
PATCH: Any = {
    "type": "custom",
    "name": "patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
SEARCH: Any = {"type": "web_search", "external_web_access": False}
# As agents' clients begin: their notes, a namespace, and a tool that OpenAI would run.
BODY: Any = {
    "model": MODEL,
    "input": [
        {"type": "message", "id": "msg_1", "role": "developer", "content": [
            {"type": "input_text", "text": "You help."}]},
        {"type": "message", "id": "msg_2", "role": "user", "content": [
            {"type": "input_text", "text": "hello"}]},
    ],
    "tools": [FUNCTION, NAMESPACE, CUSTOM, SEARCH],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {"session_id": "s", "turn": json.dumps({"a": 1})},
}  # fmt: skip


@pytest.fixture(scope="module")
def _speaking() -> Iterator[LiveServer]:
    """One whose model has room for what agents' clients say first."""
    options = {"chat_template": TEMPLATE, "num_blocks": 1024, "max_model_len": 2048}
    with live_server(options) as server:
        yield server


def test_required_means_any_tool_and_not_none_of_them() -> None:
    request = ResponsesRequest(model=MODEL, input="hello", tools=[FUNCTION], tool_choice="required")
    assert request.offered.choice == ToolChoice("required")
    request = request.model_copy(update={"tools": [*request.tools, CustomTool(**PATCH)]})
    assert Offered.of(request.tools, "required").choice.names == (FUNCTION["name"],)


def call(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def respond(server: LiveServer, **more: Any) -> Any:
    answer = server.http.post("/v1/responses", json={**BODY, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(server: LiveServer, **more: Any) -> list[Any]:
    text = server.http.post("/v1/responses", json={**BODY, **more, "stream": True}).text
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_an_agent_s_first_request_is_answered(speaking: LiveServer, prompts: list[str]) -> None:
    speaking.script("Hello.")
    answer = respond(speaking)
    assert answer["warnings"] == ["the tool web_search was left out: Quire does not have it"]
    told = [(tool["type"], tool.get("name")) for tool in answer["tools"]]
    assert told == [(tool["type"], tool.get("name")) for tool in BODY["tools"]]
    assert answer["tools"][-1] == SEARCH, "what was asked is told as it was asked"
    for name in ("weather", "agents__close", "agents__tell", "note"):
        assert f'"name": "{name}"' in prompts[0]
    assert "web_search" not in prompts[0]
    assert streamed(speaking)[-1]["response"]["warnings"] == answer["warnings"]


def test_calls_are_told_as_their_caller_knows_the_tools(speaking: LiveServer) -> None:
    speaking.script(call("agents__close", {}) + call("note", {"input": 'a\n"b"'}))
    close, note = respond(speaking)["output"]
    assert (close["type"], close["name"], close["namespace"]) == (
        "function_call", "close", "agents"
    )  # fmt: skip
    assert (note["type"], note["name"], note["input"]) == ("custom_tool_call", "note", 'a\n"b"')
    assert "namespace" not in note and "arguments" not in note
    *_, last = events = streamed(speaking)
    done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    varying = {"id", "call_id"}
    for item, whole, again in zip(done, (close, note), last["response"]["output"], strict=True):
        assert item == again
        assert {k: v for k, v in item.items() if k not in varying} == {
            k: v for k, v in whole.items() if k not in varying
        }
    of_input = [one for one in events if "custom_tool_call_input" in one["type"]]
    assert [one.get("delta", one.get("input")) for one in of_input] == ['a\n"b"'] * 2
    assert {one["item_id"] for one in of_input} == {done[1]["id"]}


def test_what_a_custom_tool_is_given_is_never_lost(speaking: LiveServer) -> None:
    for arguments, given in (
        ({"input": "x"}, "x"),
        ({"text": "x"}, '{"text": "x"}'),
        ({"input": 5}, '{"input": 5}'),
        ({"input": "x", "more": 1}, '{"input": "x", "more": 1}'),
    ):
        speaking.script(call("note", arguments))
        (note,) = respond(speaking)["output"]
        assert json.loads(f"[{json.dumps(note['input'])}]") == [given]


def test_histories_say_what_the_model_said(speaking: LiveServer, prompts: list[str]) -> None:
    speaking.script(call("agents__close", {}) + call("note", {"input": "b"}))
    first = respond(speaking)
    outputs = [
        {"type": item["type"] + "_output", "call_id": item["call_id"], "output": "done"}
        for item in first["output"]
    ]
    speaking.script("Good.")
    respond(speaking, input=[*BODY["input"], *first["output"], *outputs])
    calls = written("{}", "agents__close") + written('{"input": "b"}', "note")
    said = f"<|assistant|>{calls}<|end|>"
    assert said + "<|tool|>done<|end|><|tool|>done<|end|>" in prompts[-1]
    kept = respond(speaking, store=True)
    speaking.script(call("agents__tell", {"input": "c"}))
    told = respond(speaking, store=True, previous_response_id=kept["id"])
    respond(speaking, previous_response_id=told["id"], input=[
        {"type": "custom_tool_call_output", "call_id": told["output"][0]["call_id"],
         "output": [{"type": "input_text", "text": "heard"}]}])  # fmt: skip
    assert written('{"input": "c"}', "agents__tell") + "<|end|><|tool|>heard" in prompts[-1]


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"type": "web_search"}, "must not be web_search"),
        ({"type": "image_generation"}, "must not be image_generation"),
        ({"type": "custom", "name": "patch"}, "must not be patch"),
        ({"type": "function", "name": "cook"}, "is not one of the tools"),
        ({"type": "function", "name": "close", "namespace": "others"}, "is not one of the tools"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
         "must not be required"),
    ],
)  # fmt: skip
def test_a_tool_that_was_left_out_cannot_be_forced(
    speaking: LiveServer, choice: Any, words: str
) -> None:
    body = {**BODY, "tools": [*BODY["tools"], PATCH], "tool_choice": choice}
    refused = speaking.http.post("/v1/responses", json=body)
    assert refused.status_code == 400, refused.text
    assert words in refused.json()["error"]["message"]
    assert refused.json()["error"]["param"] == "tool_choice"


def test_nothing_can_be_required_of_tools_that_are_not_here(speaking: LiveServer) -> None:
    body = {**BODY, "tools": [SEARCH], "tool_choice": "required"}
    refused = speaking.http.post("/v1/responses", json=body).json()["error"]
    assert refused["param"] == "tool_choice" and "web_search" in refused["message"]


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "close"}, "agents__close"),
        ({"type": "function", "name": "agents__close"}, "agents__close"),
        ({"type": "function", "name": "close", "namespace": "agents"}, "agents__close"),
        ({"type": "custom", "name": "note"}, "note"),
        ({"type": "allowed_tools", "mode": "required", "tools": [
            {"type": "web_search"}, {"type": "function", "name": "close"}]}, "agents__close"),
    ],
)  # fmt: skip
def test_a_choice_may_name_a_tool_as_its_caller_knows_it(
    speaking: LiveServer, choice: Any, name: str
) -> None:
    seen: list[Any] = []
    speaking.executor.fail = lambda step: seen.extend(one.request.params for one in step.opened)
    respond(speaking, tool_choice=choice, max_output_tokens=4)
    assert name in str(seen[0].structured_outputs)


def test_a_grammar_that_is_not_kept_is_told_to_caller_and_model(
    speaking: LiveServer, prompts: list[str]
) -> None:
    speaking.script(call("patch", {"input": "y"}))
    answer = respond(speaking, tools=[PATCH])
    assert answer["warnings"] == ["the input of the tool 'patch' is kept to no grammar here"]
    assert [item["input"] for item in answer["output"]] == ["y"]
    assert "must fit this lark grammar" in prompts[0] and 'start: \\"x\\"' in prompts[0]
    free = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "patch"}]}
    assert respond(speaking, tools=[PATCH, CUSTOM], tool_choice=free)["output"]
    for more, choice in (
        ((), "required"),
        ((CUSTOM,), {**free, "mode": "required"}),
        ((), {"type": "custom", "name": "patch"}),
    ):
        body = {**BODY, "tools": [PATCH, *more], "tool_choice": choice}
        refused = speaking.http.post("/v1/responses", json=body).json()["error"]
        assert refused["param"] == "tool_choice" and "kept to no grammar" in refused["message"]


def test_of_several_tools_one_that_is_kept_to_can_be_required(speaking: LiveServer) -> None:
    seen: list[Any] = []
    speaking.executor.fail = lambda step: seen.extend(one.request.params for one in step.opened)
    speaking.script(call("note", {"input": "y"}))
    respond(speaking, tools=[PATCH, CUSTOM], tool_choice="required")
    grammar = seen[0].structured_outputs.grammar
    assert "note" in grammar and "patch" not in grammar


# As Codex begins with the model that it takes by itself: its tools are an item of the input.
ADDED: Any = {
    "type": "additional_tools",
    "id": "at_01a216c8-b005-7d30-9d53-fd2fa2126027",
    "role": "developer",
    "tools": [
        {"type": "namespace", "name": "functions", "description": "", "tools": [
            {"type": "custom", "name": "exec", "description": "Run JavaScript code",
             "format": {"type": "grammar", "syntax": "lark", "definition":
                        "start: SOURCE\nSOURCE: /[\\s\\S]+/"}},
            {"type": "function", "name": "wait", "strict": False, "description": "Waits",
             "parameters": {"type": "object", "properties": {
                 "cell_id": {"type": "string", "encrypted": True}}}},
        ]},
    ],
}  # fmt: skip


def test_tools_that_a_conversation_brings(speaking: LiveServer, prompts: list[str]) -> None:
    body = {name: value for name, value in BODY.items() if name != "tools"}
    body |= {"input": [ADDED, *BODY["input"]], "store": True}
    body |= {"reasoning": {"effort": "low", "context": "all_turns"}, "text": {"verbosity": "low"}}
    speaking.script(call("functions__exec", {"input": "text(1)"}))
    answer = speaking.http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    (item,) = answer.json()["output"]
    assert (item["type"], item["namespace"], item["name"], item["input"]) == (
        "custom_tool_call", "functions", "exec", "text(1)"
    )  # fmt: skip
    assert '"name": "functions__wait"' in prompts[0] and "additional_tools" not in prompts[0]
    output = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "1"}
    again = {**body, "input": [output], "previous_response_id": answer.json()["id"]}
    (item,) = speaking.http.post("/v1/responses", json=again).json()["output"]
    assert item["name"] == "exec" and '"name": "functions__exec"' in prompts[1]
    listed = speaking.http.get(f"/v1/responses/{answer.json()['id']}/input_items").json()["data"]
    assert listed[-1]["type"] == "additional_tools" and listed[-1]["id"] == ADDED["id"]


def test_a_long_name_in_a_namespace_is_shortened_and_found_again(
    speaking: LiveServer, prompts: list[str]
) -> None:
    inside = [{"type": "function", "name": f"close{i}"} for i in range(2)]
    long = {**NAMESPACE, "name": "n" * 60, "tools": inside}
    respond(speaking, tools=[long], max_output_tokens=2)
    names = [part.split('"')[0] for part in prompts[0].split('"name": "')[1:]]
    assert len(set(names)) == 2 and {len(name) for name in names} == {64}
    speaking.script(call(names[1], {}))
    (item,) = respond(speaking, tools=[long])["output"]
    assert (item["name"], item["namespace"]) == ("close1", "n" * 60)


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ([{"type": "websearch"}], "tools[0]"),
        ([{"type": "namespace", "name": "n", "tools": [SEARCH]}], "tools[0].namespace.tools[0]"),
        ([NAMESPACE, {"type": "function", "name": "agents__close"}], "tools[2].function.name"),
    ],
)
def test_what_no_tool_is(speaking: LiveServer, tools: Any, field: str) -> None:
    refused = speaking.http.post("/v1/responses", json={**BODY, "tools": tools})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field), refused.text


def test_one_of_no_tools_cannot_be_required_in_a_chat(speaking: LiveServer) -> None:
    """What must be called is by no grammar then, and no call would come."""
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}],
            "tools": [WEATHER], "tool_choice": allowed}  # fmt: skip
    refused = speaking.http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tool_choice"
