"""Ollama's API by hand; `make test-clients` has its own client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.live_server import MAX_MODEL_LEN, MODEL, LiveServer, live_server
from support.speaking import SAID, WEATHER, written

TEXT = "Grüße 🦊, a tale."


def generate(server: LiveServer, **body: Any) -> list[Any]:
    """The lines of an answer, which is a stream unless that is declined."""
    response = server.http.post("/api/generate", json={"model": MODEL, "prompt": "hello", **body})
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_stream_says_what_the_whole_answer_says(server: LiveServer) -> None:
    tokens = server.script(TEXT)
    *lines, last = generate(server)
    assert "".join(line["response"] for line in lines) == TEXT and last["response"] == ""
    assert {line["done"] for line in lines} == {False} and last["done"] is True
    assert last["done_reason"] == "stop" and last["eval_count"] == len(tokens) + 1
    (whole,) = generate(server, stream=False)
    assert whole["response"] == TEXT and whole.keys() == last.keys()
    assert last["total_duration"] >= last["prompt_eval_duration"] > 0
    assert generate(server, options={"num_predict": 2})[-1]["done_reason"] == "length"


def test_the_prompt_is_put_into_the_chat_template_unless_it_is_raw(server: LiveServer) -> None:
    prompts = []
    server.executor.fail = lambda step: prompts.extend(
        server.tokenizer.decode(one.request.prompt_token_ids, skip_special_tokens=False)
        for one in step.opened
    )
    few = {"num_predict": 1}
    generate(server, options=few)
    generate(server, options=few, system="Be brief.")
    generate(server, options=few, raw=True)
    asked = "<|user|>hello<|end|><|assistant|>"
    assert prompts == [asked, f"<|system|>Be brief.<|end|>{asked}", "hello"]


def test_without_a_chat_template_a_prompt_is_as_it_is() -> None:
    with live_server({"chat_template": ""}) as server:
        (line,) = generate(server, stream=False, options={"num_predict": 1})
        expected = server.tokenizer.encode("hello")
        assert line["prompt_eval_count"] == len(expected)


def test_options_reach_the_engine_and_those_about_the_machine_pass(server: LiveServer) -> None:
    seen = []
    server.executor.fail = lambda step: seen.extend(one.request.params for one in step.opened)
    options = {
        "temperature": 0.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 7, "stop": ["zz"],
        "repeat_penalty": 1.5, "presence_penalty": 0.25, "frequency_penalty": 0.5,
        "repeat_last_n": -1, "num_predict": 3, "num_ctx": MAX_MODEL_LEN, "num_thread": 99,
        "num_gpu": 0, "use_mmap": True, "mirostat": 0, "mirostat_tau": 5.0, "typical_p": 1.0,
    }  # fmt: skip
    generate(server, options=options, keep_alive="5m", context=[], images=[], template="")
    (params,) = seen
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 5, 0.9, 0.1)
    assert (params.seed, params.stop, params.max_tokens) == (7, ("zz",), 3)
    assert (params.repetition_penalty, params.presence_penalty) == (1.5, 0.25)
    assert params.structured_outputs is None
    server.script("{}")
    generate(server, options={"seed": -1, "num_predict": -1}, format="json")
    assert seen[1].seed is None and seen[1].max_tokens is None
    assert seen[1].structured_outputs.json_object
    generate(server, format={"type": "object"})
    assert json.loads(seen[2].structured_outputs.json) == {"type": "object"}


def test_logprobs(server: LiveServer) -> None:
    tokens = server.script("A tale.")
    ask = {"options": {"num_predict": len(tokens)}, "logprobs": True, "top_logprobs": 1}
    (whole,) = generate(server, **ask, stream=False)
    assert [entry["token"] for entry in whole["logprobs"]] == [
        server.tokenizer.decode([token]) for token in tokens
    ]
    assert {entry["top_logprobs"][0]["logprob"] for entry in whole["logprobs"]} == {-1.0}
    streamed = [entry for line in generate(server, **ask) for entry in line.get("logprobs", [])]
    assert streamed == whole["logprobs"]


def test_without_a_prompt_the_model_is_said_to_be_loaded(shared: LiveServer) -> None:
    (line,) = generate(shared, prompt="")
    assert (line["done"], line["done_reason"], line["response"]) == (True, "load", "")
    (line,) = generate(shared, prompt="", keep_alive=0)
    assert line["done_reason"] == "unload"


def test_models_by_their_names_and_by_ollama_s_tag(shared: LiveServer) -> None:
    (tag,) = shared.http.get("/api/tags").json()["models"]
    assert tag["name"] == tag["model"] == f"{MODEL}:latest"
    (running,) = shared.http.get("/api/ps").json()["models"]
    assert running["name"] == tag["name"] and running["context_length"] == MAX_MODEL_LEN
    for name in (MODEL, tag["name"]):
        shown = shared.http.post("/api/show", json={"model": name}).json()
        assert shown["model_info"]["quire.context_length"] == MAX_MODEL_LEN
        assert "completion" in shown["capabilities"]
        assert generate(shared, model=name, options={"num_predict": 1})[-1]["done"]
    assert shared.http.get("/api/version").json()["version"]
    assert shared.http.head("/").status_code == 200


def chat(server: LiveServer, **body: Any) -> list[Any]:
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": MODEL, "messages": messages, **body}
    response = server.http.post("/api/chat", json=body)
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_streamed_chat_comes_to_what_the_whole_one_says(speaking: LiveServer) -> None:
    speaking.script(SAID)
    (whole,) = chat(speaking, tools=[WEATHER], stream=False)
    message = whole["message"]
    assert (message["role"], message["content"]) == ("assistant", "I look.")
    assert message["thinking"] == "The user wants weather."
    calls = [call["function"] for call in message["tool_calls"]]
    assert [(call["name"], call["arguments"]) for call in calls] == [
        ("weather", {"city": "Paris"}),
        ("weather", {}),
    ]
    *lines, last = chat(speaking, tools=[WEATHER])
    assert last["done"] and last["message"]["content"] == "" and last.keys() == whole.keys()
    pieces = [line["message"] for line in lines]
    for name in ("content", "thinking"):
        assert "".join(piece.get(name, "") for piece in pieces) == message[name]
    told = [call["function"] for piece in pieces for call in piece.get("tool_calls", [])]
    assert told == calls
    said = "".join(line.get("thinking", "") for line in generate(speaking))
    assert said == message["thinking"], "a prompt is a chat, too"


def test_a_history_is_rendered_by_the_template(speaking: LiveServer, prompts: list[str]) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Paris"}}}
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "hot"},
    ]
    chat(speaking, messages=messages, think=False, options={"num_predict": 1})
    assert prompts == [
        f"<|user|>weather?<|end|><|assistant|><think>hm</think>{written()}"
        "<|end|><|tool|>hot<|end|><|assistant|><think></think>"
    ]
    shown = speaking.http.post("/api/show", json={"model": MODEL}).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "bot", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "images"),
        ({"messages": [{"role": "user", "tool_calls": [{"function": {}}]}]}, "name"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {"name": "two words"}}]}, "tools[0]"),
        ({"think": "much"}, "think"),
        ({"options": {"temperature": -1}}, "options.temperature"),
        ({"prompt": "x"}, "prompt"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_bad_chats(speaking: LiveServer, body: Any, named: str, stream: bool) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], **body}
    response = speaking.http.post("/api/chat", json={"stream": stream, **body})
    assert response.status_code == 400, response.text
    assert response.json().keys() == {"error"} and named in response.json()["error"]


def test_curl_need_not_say_that_it_sends_json_but_a_browser_must(shared: LiveServer) -> None:
    body = json.dumps({"model": MODEL, "prompt": "hi", "options": {"num_predict": 1}})
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert shared.http.post("/api/generate", content=body, headers=headers).status_code == 200
    headers["origin"] = "http://localhost:3000"
    assert shared.http.post("/api/generate", content=body, headers=headers).status_code == 400


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"prompt": 5}, "prompt"),
        ({"stream": "yes"}, "stream"),
        ({"raw": 1}, "raw"),
        ({"suffix": "end"}, "suffix"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"context": [1, 2]}, "context"),
        ({"images": ["aGk="]}, "images"),
        ({"raw": True, "system": "x"}, "system"),
        ({"keep_alive": []}, "keep_alive"),
        ({"format": "xml"}, "format"),
        ({"format": {"not": {}}}, "format"),
        ({"width": 512}, "width"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 101}, "top_logprobs"),
        ({"options": 5}, "options"),
        ({"options": {"temprature": 1}}, "options.temprature"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"temperature": -1}}, "options.temperature"),
        ({"options": {"top_k": 1.5}}, "options.top_k"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"typical_p": 0.5}}, "options.typical_p"),
        ({"options": {"repeat_penalty": 0}}, "options.repeat_penalty"),
        ({"options": {"num_predict": 0}}, "options.num_predict"),
        ({"options": {"stop": [5]}}, "options.stop"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_bad_bodies(shared: LiveServer, body: Any, named: str, stream: bool) -> None:
    body = {"model": MODEL, "prompt": "hello", "stream": stream, **body}
    response = shared.http.post("/api/generate", json=body)
    assert response.status_code == 400, response.text
    assert response.json().keys() == {"error"} and named in response.json()["error"]


def test_errors_have_ollama_s_shape_whoever_they_come_from(shared: LiveServer) -> None:
    for response, status in [
        (shared.http.post("/api/generate", json={"model": "llama9", "prompt": "x"}), 404),
        (shared.http.post("/api/show", json={"model": "llama9"}), 404),
        (shared.http.post("/api/show", json={}), 400),
        (shared.http.post("/api/pull", json={"model": "llama9"}), 404),
        (shared.http.get("/api/generate"), 405),
        (shared.http.post("/api/generate", content="{"), 400),
    ]:
        assert response.status_code == status
        assert isinstance(response.json()["error"], str) and len(response.json()) == 1
    with live_server(api_key=["secret"]) as guarded:
        response = guarded.http.get("/api/tags")
        assert response.status_code == 401 and isinstance(response.json()["error"], str)


def test_a_step_that_fails_is_the_last_line(server: LiveServer) -> None:
    def fail(step: object) -> None:
        raise RuntimeError("planted")

    server.executor.hold()
    server.executor.let(steps=1)
    body = {"model": MODEL, "prompt": "hello"}
    with server.http.stream("POST", "/api/generate", json=body) as response:
        server.executor.fail = fail
        server.executor.release()
        *lines, last = map(json.loads, response.iter_lines())
    assert lines and isinstance(last["error"], str) and "done" not in last
