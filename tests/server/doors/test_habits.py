"""What clients of other servers do out of habit, and what they get."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from quire.http.service import ModelFacts
from support.live_server import MODEL, LiveServer, events, live_server, scripted_engine
from support.speaking import TEMPLATE, WEATHER

ASKED = [{"role": "user", "content": "hello"}]


@pytest.fixture
def params(speaking: LiveServer) -> list[Any]:
    """Those of the requests that it gets."""
    seen: list[Any] = []
    speaking.executor.fail = lambda step: seen.extend(one.request.params for one in step.opened)
    return seen


# -- OpenAI's door ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"max_tokens": -1}, "max_tokens", None),
        ({"max_tokens": 5.0}, "max_tokens", 5),
        ({"max_new_tokens": 5}, "max_tokens", 5),
        ({"max_tokens": 4, "max_new_tokens": 5}, "max_tokens", 4),
        ({"n_predict": 5}, "max_tokens", 5),
        ({"n_predict": -1}, "max_tokens", None),
        ({"id_slot": 0, "cache_prompt": False, "n_predict": 2}, "max_tokens", 2),
        ({"stop": "", "max_tokens": 2}, "stop", ()),
        ({"top_k": 3.0, "temperature": 1, "max_tokens": 2}, "top_k", 3),
        ({"json_schema": {"type": "object"}, "max_tokens": 2}, "structured_outputs", "json"),
        ({"grammar": 'root ::= "a"', "max_tokens": 2}, "structured_outputs", "grammar"),
        ({"grammar": "", "max_tokens": 2}, "structured_outputs", None),
        ({"response_format": {"type": "json_object", "schema": {"type": "object"}},
          "max_tokens": 2}, "structured_outputs", "json"),
        ({"response_format": {"type": "json_schema", "schema": {"type": "object"}},
          "max_tokens": 2}, "structured_outputs", "json"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": "foo"}}},
          "max_tokens": 2}, "structured_outputs", "json"),
    ],
)  # fmt: skip
def test_fields(
    speaking: LiveServer, params: list[Any], fields: Any, name: str, value: Any
) -> None:
    for answer in (speaking.chat(**fields), speaking.complete(prompt="x", **fields)):
        assert answer.status_code == 200, answer.text
    for seen in params:
        found = getattr(seen, name)
        if name == "structured_outputs" and value:
            assert getattr(found, value)
        else:
            assert found == value


def test_of_two_structures_one_must_be_given(speaking: LiveServer) -> None:
    for more in (
        {"guided_json": {}},
        {"grammar": 'root ::= "a"'},
        {"structured_outputs": {"json": {}}},
    ):
        refused = speaking.chat(json_schema={"type": "object"}, **more)
        assert refused.status_code == 400 and "give one" in refused.text
    for name in ("max_new_tokens", "n_predict"):
        refused = speaking.complete(prompt="x", **{name: -5})
        assert refused.json()["error"]["param"] == name


@pytest.mark.parametrize("stream", [False, True])
def test_timings(speaking: LiveServer, stream: bool) -> None:
    ask: dict[str, Any] = {"max_tokens": 3, "timings_per_token": True, "stream": stream}
    for answer in (speaking.chat(**ask), speaking.complete(prompt="x", **ask)):
        told = [one["timings"] for one in (events(answer) if stream else [answer.json()])
                if "timings" in one]  # fmt: skip
        assert [one["predicted_n"] for one in told] == ([1, 2, 3] if stream else [3])
        assert told[-1]["predicted_ms"] > 0
        assert len({one["prompt_n"] + one.get("cache_n", 0) for one in told}) == 1
    assert "timings" not in speaking.chat(max_tokens=3).json()


def test_timings_beside_the_usage(speaking: LiveServer) -> None:
    ask: dict[str, Any] = {"max_tokens": 3, "timings_per_token": True, "stream": True}
    *_, last = events(speaking.chat(**ask, stream_options={"include_usage": True}))
    assert last["choices"] == [] and last["timings"]["predicted_n"] == 3


def test_a_conversation_begun_at_openai_goes_on(speaking: LiveServer, prompts: list[str]) -> None:
    refused = {"role": "assistant", "content": None, "refusal": "I will not.", "annotations": [],
               "audio": None, "function_call": None}  # fmt: skip
    answer = speaking.chat(messages=[ASKED[0], refused, ASKED[0]], max_tokens=2)
    assert answer.status_code == 200 and "I will not." in prompts[0]
    items: list[Any] = [
        {"role": "user", "content": "look"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed",
         "action": {"type": "search", "query": "x"}},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [
            {"type": "refusal", "refusal": "I cannot."}]},
        {"role": "user", "content": "why?"},
    ]  # fmt: skip
    body = {"model": MODEL, "input": items, "max_output_tokens": 2}
    told = speaking.http.post("/v1/responses", json=body).json()
    assert told["warnings"] == ["the item web_search_call was left out: Quire does not have it"]
    assert "I cannot." in prompts[1] and "web_search" not in prompts[1]
    kept = speaking.http.get(f"/v1/responses/{told['id']}/input_items").json()["data"]
    assert [item["type"] for item in kept] == ["message"] * 3
    body["input"] = [{"type": "computer_call", "call_id": "x"}]
    assert speaking.http.post("/v1/responses", json=body).status_code == 400


def test_one_begun_at_anthropic_too(speaking: LiveServer, prompts: list[str]) -> None:
    said: list[Any] = [
        {
            "type": "server_tool_use",
            "id": "srvtoolu_1",
            "name": "web_search",
            "input": {"query": "x"},
        },
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "text", "text": "Found.", "citations": [{"type": "x", "cited_text": "y"}]},
    ]
    body = {"model": MODEL, "max_tokens": 2, "messages": [
        ASKED[0], {"role": "assistant", "content": said}, ASKED[0]]}  # fmt: skip
    answer = speaking.http.post("/v1/messages", json=body).json()
    assert answer["warnings"] == [
        "the block server_tool_use was left out: Quire does not have it",
        "the block web_search_tool_result was left out: Quire does not have it",
    ]
    assert "Found." in prompts[0] and "web_search" not in prompts[0]
    body["messages"] = [{"role": "user", "content": said[:1]}]
    assert speaking.http.post("/v1/messages", json=body).status_code == 400


def test_strictly_they_do_not() -> None:
    with live_server({"chat_template": TEMPLATE}, strict_fields=True) as server:
        item = {"type": "web_search_call", "id": "ws_1"}
        answer = server.http.post("/v1/responses", json={"model": MODEL, "input": [item]})
        assert answer.status_code == 400 and "web_search_call" in answer.text
        block = {"type": "server_tool_use", "id": "x"}
        messages = [{"role": "assistant", "content": [block]}]
        body = {"model": MODEL, "max_tokens": 2, "messages": messages}
        answer = server.http.post("/v1/messages", json=body)
        assert answer.status_code == 400 and "server_tool_use" in answer.text


# -- addresses ----------------------------------------------------------------------------------


def test_addresses_without_v1(speaking: LiveServer) -> None:
    chat = {"model": MODEL, "messages": ASKED, "max_tokens": 1}
    for path, body in (
        ("/chat/completions", chat),
        ("/responses", {"model": MODEL, "input": "x", "max_output_tokens": 1}),
    ):
        answer = speaking.http.post(path, json=body)
        assert answer.status_code == 200, path
        assert speaking.http.post(path, json={**body, "wrong": 1}).json()["error"]["param"]
    assert speaking.http.get("/models").json() == speaking.http.get("/v1/models").json()
    assert speaking.http.get(f"/models/{MODEL}").json()["id"] == MODEL
    assert speaking.http.get("/v1/health").status_code == 200


# -- llama.cpp's --------------------------------------------------------------------------------


def test_the_prompt_that_a_chat_comes_to(speaking: LiveServer, prompts: list[str]) -> None:
    body = {"messages": ASKED, "tools": [WEATHER], "max_tokens": 1}
    told = speaking.http.post("/apply-template", json=body).json()
    speaking.chat(**body)
    assert told == {"prompt": prompts[0]} and '"name": "weather"' in prompts[0]
    long = [{"role": "user", "content": "a b " * 200}]  # longer than can be served
    told = speaking.http.post("/apply-template", json={"messages": long}).json()
    assert "a b a b" in told["prompt"] and len(told["prompt"]) > 800
    error = speaking.http.post("/apply-template", json={"messages": "x"}).json()["error"]
    assert error["code"] == 400
    for above in ("", "/v1"):
        counted = speaking.http.post(f"{above}/chat/completions/input_tokens", json=body).json()
        count = len(speaking.tokenizer.encode(prompts[0], add_special_tokens=False))
        assert counted == {"object": "response.input_tokens", "input_tokens": count}


def test_a_prompt_of_texts_and_tokens(speaking: LiveServer) -> None:
    seen: list[Any] = []
    speaking.executor.fail = lambda step: seen.extend(
        [*one.request.prompt_token_ids] for one in step.opened
    )
    plain = speaking.tokenizer.encode("hello", add_special_tokens=False)
    for prompt, several in (([7, "hello", 8], False), ([[7, "hello", 8], "hello"], True)):
        answer = speaking.http.post("/completion", json={"prompt": prompt, "n_predict": 1})
        assert answer.status_code == 200 and isinstance(answer.json(), list) == several
    assert seen == [[7, *plain, 8], [7, *plain, 8], speaking.tokenizer.encode("hello")]
    for prompt in ([5, ["x"]], [5, True], ["x", {}], [[[5]]]):
        refused = speaking.http.post("/completion", json={"prompt": prompt})
        assert refused.status_code == 400 and "prompt" in refused.text


def test_infilling_needs_a_model_for_it(speaking: LiveServer) -> None:
    body = {"input_prefix": "def f(", "input_suffix": "return x"}
    error = speaking.http.post("/infill", json=body).json()["error"]
    assert error["code"] == 400 and "input_suffix needs a model that fills in" in error["message"]
    for extra in ({}, {"filename": "ok"}, {"filename": 123, "text": "abc"}):
        refused = speaking.http.post("/infill", json={**body, "input_extra": [extra]})
        assert refused.status_code == 400 and "input_extra[0]" in refused.text


def test_infilling(speaking: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = "quire.engine.input_processor.infilling_marks"
    monkeypatch.setattr(marks, lambda tokenizer, vocab_size: (5, 6, 7))
    seen: list[Any] = []
    speaking.executor.fail = lambda step: seen.extend(
        [*one.request.prompt_token_ids] for one in step.opened
    )
    extra = [{"filename": "a.py", "text": "x = 1"}]
    body = {"input_prefix": "def f(", "input_suffix": ": pass", "prompt": "x", "n_predict": 2}
    answer = speaking.http.post("/infill", json={**body, "input_extra": extra}).json()
    before, after = (
        speaking.tokenizer.encode(text, add_special_tokens=False)
        for text in ("a.py\nx = 1\ndef f(x", ": pass")
    )
    assert seen[0][-len(before) - len(after) - 3 :] == [5, *before, 6, *after, 7]
    assert answer["tokens_predicted"] == 2
    lines = speaking.http.post("/infill", json={**body, "stream": True}).text.splitlines()
    assert json.loads(lines[-2].removeprefix("data: "))["stop"] is True


# -- TEI's --------------------------------------------------------------------------------------


def test_rerank(speaking: LiveServer) -> None:
    texts = ["hello", "once upon a time"]
    body: dict[str, Any] = {"query": "hello", "texts": texts, "raw_scores": False, "truncate": True}
    ranked = speaking.http.post("/rerank", json={**body, "return_text": True}).json()
    assert sorted(one["index"] for one in ranked) == [0, 1]
    assert [texts[one["index"]] for one in ranked] == [one["text"] for one in ranked]
    assert ranked[0]["score"] >= ranked[1]["score"]
    usual = speaking.http.post("/rerank", json={"query": "hello", "documents": texts}).json()
    assert [one["score"] for one in ranked] == [one["relevance_score"] for one in usual["results"]]
    assert "text" not in speaking.http.post("/rerank", json=body).json()[0]
    for wrong in ({"raw_scores": True}, {"documents": ["x"]}, {"texts": []}):
        assert speaking.http.post("/rerank", json={**body, **wrong}).status_code == 400


# -- Ollama's -----------------------------------------------------------------------------------


def test_pulling_what_is_served(speaking: LiveServer) -> None:
    for name in (MODEL, f"{MODEL}:latest"):
        lines = speaking.http.post("/api/pull", json={"model": name}).text.splitlines()
        assert json.loads(lines[-1]) == {"status": "success"} and len(lines) > 1
    whole = speaking.http.post("/api/pull", json={"name": MODEL, "stream": False})
    assert whole.json() == {"status": "success"}
    for body, status in (({"model": "llama9"}, 404), ({}, 400)):
        refused = speaking.http.post("/api/pull", json=body)
        assert refused.status_code == status and isinstance(refused.json()["error"], str)


@pytest.fixture
def known() -> Iterator[Any]:
    """What is told of a model whose files are known."""
    from starlette.testclient import TestClient

    facts = ModelFacts(988_000_000, "bfloat16", family="qwen2", num_parameters=494_032_768)
    app = create_app(scripted_engine()[0], [MODEL], ServerConfig(), facts=facts)
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def test_families_and_sizes(known: Any) -> None:
    (card,) = known.get("/api/tags").json()["models"]
    shown = known.post("/api/show", json={"model": MODEL}).json()
    for details in (card["details"], shown["details"]):
        assert (details["family"], details["families"]) == ("qwen2", ["qwen2"])
        assert details["parameter_size"] == "494.03M"
    assert shown["model_info"]["general.architecture"] == "qwen2"
    assert shown["model_info"]["general.parameter_count"] == 494_032_768
    assert shown["model_info"]["qwen2.context_length"]
