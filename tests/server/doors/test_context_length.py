"""A prompt that is too long is told so in each API's own words, by which agents know to say less.

Beside the words there are Quire's own, with the field and the figures.
"""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from support.live_server import MAX_MODEL_LEN, MODEL, LiveServer, live_server

WORDS = "a b c d e " * 60
LONG = [5] * 300
CHAT = [{"role": "user", "content": WORDS}]
MAXIMUM = f"This model's maximum context length is {MAX_MODEL_LEN} tokens. However, "


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/completions", {"prompt": WORDS}, "prompt"),
        ("/v1/completions", {"prompt": LONG}, "prompt"),
        ("/v1/completions", {"prompt": "word " * 100_000}, "prompt"),
        ("/v1/chat/completions", {"messages": CHAT}, "messages"),
        ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 100_000}]},
         "messages"),
        ("/v1/responses", {"input": WORDS}, "input"),
        ("/v1/responses", {"input": "hi", "instructions": WORDS}, "input"),
    ],
)  # fmt: skip
def test_openai_s(
    speaking: LiveServer, path: str, body: dict[str, Any], field: str, stream: bool
) -> None:
    answer = speaking.http.post(path, json={"model": MODEL, **body, "stream": stream})
    assert answer.status_code == 400 and answer.json().keys() == {"error"}
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
    assert error["param"] == field and error["message"].startswith(MAXIMUM)
    assert error["message"].endswith("(context_length_exceeded)"), "all that LangChain looks at"


def test_openai_s_client_has_the_code(speaking: LiveServer) -> None:
    chat: Any = CHAT
    with pytest.raises(openai.BadRequestError) as refused:
        speaking.openai.chat.completions.create(model=MODEL, messages=chat)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/score", "/v1/rerank"])
def test_texts_that_are_too_long_for_a_vector(speaking: LiveServer, path: str) -> None:
    body: dict[str, Any] = {
        "/v1/embeddings": {"input": LONG},
        "/v1/score": {"text_1": WORDS, "text_2": "x"},
        "/v1/rerank": {"query": "x", "documents": [WORDS]},
    }[path]
    error = speaking.http.post(path, json=body).json()["error"]
    assert error["code"] == "context_length_exceeded", error


def test_anthropic_s(speaking: LiveServer) -> None:
    body = {"model": MODEL, "messages": CHAT, "max_tokens": 9}
    counted = speaking.http.post("/v1/messages", json=body)
    error = counted.json()["error"]
    assert (counted.status_code, error["type"]) == (400, "invalid_request_error")
    begun, _, more = error["message"].partition(" tokens > ")
    assert begun.startswith("prompt is too long: ") and int(begun.rpartition(" ")[2]) > 255
    assert more.startswith("255 maximum") and "messages" in more


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"messages": CHAT, "truncate": False}),
        ("/api/generate", {"prompt": WORDS, "truncate": False}),
        ("/api/embed", {"input": WORDS, "truncate": False}),
        ("/api/embeddings", {"prompt": WORDS}),
    ],
)
def test_ollama_s(speaking: LiveServer, path: str, body: dict[str, Any]) -> None:
    answer = speaking.http.post(path, json={"model": MODEL, **body})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("the input length exceeds the context length; ")


@pytest.mark.parametrize(
    ("path", "body"), [("/completion", {"prompt": LONG}), ("/embedding", {"content": LONG})]
)
def test_llama_cpp_s(speaking: LiveServer, path: str, body: dict[str, Any]) -> None:
    answer = speaking.http.post(path, json=body)
    error = answer.json()["error"]
    assert answer.status_code == error["code"] == 400
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (300, MAX_MODEL_LEN)
    assert (
        "request (300 tokens) exceeds the available context size (256 tokens)" in error["message"]
    )


@pytest.mark.parametrize("stream", [False, True])
def test_openai_s_without_v1(speaking: LiveServer, stream: bool) -> None:
    for path, body in (("/chat/completions", {"messages": CHAT}), ("/responses", {"input": WORDS})):
        answer = speaking.http.post(path, json={**body, "stream": stream})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["type"] == "exceed_context_size_error" and error["n_ctx"] == MAX_MODEL_LEN
        assert error["n_prompt_tokens"] > MAX_MODEL_LEN - 1


def test_what_memory_cannot_hold_is_too_long_too() -> None:
    with live_server({"num_blocks": 16}) as server:  # of 4 tokens
        error = server.complete(prompt=[5] * 100).json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert (
            "16" in error["message"] and "maximum context length is 64 tokens" in error["message"]
        )


def test_other_fields_that_are_too_long_are_no_context(speaking: LiveServer) -> None:
    given = {"type": "content", "content": " a" * 300}
    for body in ({"prediction": given}, {"top_p": 9}):
        assert speaking.complete(prompt="x", **body).json()["error"]["code"] is None


def told(server: LiveServer, path: str, **body: Any) -> Any:
    """The last line of Ollama's answer."""
    body = {"model": MODEL, "options": {"num_predict": 4}, **body}
    answer = server.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return json.loads(answer.text.splitlines()[-1])


def test_ollama_leaves_out_the_oldest_messages(speaking: LiveServer, prompts: list[str]) -> None:
    messages = [{"role": "system", "content": "Be brief."}]
    for number in range(40):
        messages += [
            {"role": "user", "content": f"question {number}"},
            {"role": "assistant", "content": f"answer {number}"},
        ]
    messages.append({"role": "user", "content": "and now?"})
    line = told(speaking, "/api/chat", messages=messages)
    (prompt,), (warning,) = prompts, line["warnings"]
    assert "Be brief." in prompt and "and now?" in prompt and "question 39" in prompt
    assert "question 0" not in prompt and MAX_MODEL_LEN - 24 < line["prompt_eval_count"] <= 252
    left_out = 80 - prompt.count("question") - prompt.count("answer")
    assert warning == f"the oldest {left_out} messages were left out: max_model_len is 256"
    told(speaking, "/api/chat", messages=messages, stream=False, options={})
    assert prompts[1].count("question") < prompts[0].count("question"), "half is for the answer"


@pytest.mark.parametrize("raw", [False, True])
def test_ollama_s_num_ctx_is_a_shorter_context(
    speaking: LiveServer, prompts: list[str], raw: bool
) -> None:
    few: Any = {"options": {"num_ctx": 64, "num_predict": 8, "stop": []}}
    line = told(speaking, "/api/generate", prompt=WORDS + "the end", raw=raw, **few)
    assert line["warnings"] == ["the prompt's beginning was cut off: num_ctx is 64"]
    assert 40 < line["prompt_eval_count"] <= 56 and "the end" in prompts[0]
    talk = [{"role": "user", "content": "one two three " * 3} for _ in range(20)]
    line = told(speaking, "/api/chat", messages=talk, **few)
    (warning,) = line["warnings"]
    assert warning.endswith(" messages were left out: num_ctx is 64")
    assert line["prompt_eval_count"] <= 56
    for asked in ({"num_ctx": 32}, {"num_ctx": 32, "num_predict": 1000}):
        line = told(speaking, "/api/generate", prompt="hello", raw=raw, options=asked)
        assert (line["prompt_eval_count"] + line["eval_count"], line["done_reason"]) == (
            32,
            "length",
        )
    if raw:  # four tokens, as Ollama has them
        few = {"options": {"num_ctx": 1}}
        assert told(speaking, "/api/generate", prompt="hello", raw=raw, **few)["eval_count"] < 4
    whole = {"prompt": WORDS[:200], "raw": raw, "truncate": False, "options": {"num_ctx": 20}}
    refused = speaking.http.post("/api/generate", json={"model": MODEL, **whole})
    assert refused.status_code == 400 and "num_ctx is 20" in refused.json()["error"]


def test_ollama_s_num_ctx_of_a_vector(speaking: LiveServer) -> None:
    body = {"model": MODEL, "input": WORDS[:200], "options": {"num_ctx": 20}}
    cut = speaking.http.post("/api/embed", json=body)
    assert cut.json()["prompt_eval_count"] == 20
    refused = speaking.http.post("/api/embed", json={**body, "truncate": False})
    assert refused.status_code == 400 and "num_ctx is 20" in refused.json()["error"]


def test_ollama_begins_no_conversation_with_a_tool_s_answer(
    speaking: LiveServer, prompts: list[str]
) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "x"}}}
    turns: Any = [{"role": "user", "content": WORDS[:100]}]
    for _ in range(9):
        turns += [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": "hot " * 9},
        ]
    assert told(speaking, "/api/chat", messages=turns)["warnings"]
    assert prompts[0].startswith("<|assistant|>")


@pytest.mark.parametrize("raw", [False, True])
def test_ollama_cuts_a_prompt_s_beginning(
    speaking: LiveServer, prompts: list[str], raw: bool
) -> None:
    few: Any = {} if raw else {"system": "Be brief."}
    line = told(speaking, "/api/generate", prompt=WORDS + "the end", raw=raw, **few)
    assert line["warnings"] == ["the prompt's beginning was cut off: max_model_len is 256"]
    assert 240 < line["prompt_eval_count"] <= 252 and "the end" in prompts[0]
    assert raw or prompts[0].startswith("<|system|>Be brief.<|end|><|user|>")
    assert told(speaking, "/api/generate", prompt=WORDS * 500 + "the end", raw=raw)["warnings"]
    short = told(speaking, "/api/generate", prompt="hello", raw=raw)
    assert "warnings" not in short
    alone = told(speaking, "/api/chat", messages=[{"role": "user", "content": WORDS}])
    assert alone["warnings"] == line["warnings"]
