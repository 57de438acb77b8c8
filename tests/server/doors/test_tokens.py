"""POST /tokenize and /detokenize, of vLLM's shape and of llama.cpp's."""

from __future__ import annotations

from typing import Any

import pytest

from support.live_server import MAX_MODEL_LEN, MODEL, LiveServer
from support.speaking import WEATHER

TEXT = "A long tale"
MESSAGES = [{"role": "user", "content": TEXT}]


def test_a_text_and_its_tokens_in_both_shapes(shared: LiveServer) -> None:
    tokens = shared.tokenizer.encode(TEXT, add_special_tokens=False)
    pieces = [shared.tokenizer.decode([token]) for token in tokens]
    vllm = shared.http.post("/tokenize", json={"model": MODEL, "prompt": TEXT}).json()
    assert vllm == {
        "count": len(tokens), "max_model_len": MAX_MODEL_LEN, "tokens": tokens, "token_strs": None,
    }  # fmt: skip
    body = {"prompt": TEXT, "return_token_strs": True}
    assert shared.http.post("/tokenize", json=body).json()["token_strs"] == pieces
    llama_cpp = shared.http.post("/tokenize", json={"content": TEXT}).json()
    assert llama_cpp == {"tokens": tokens}
    told = shared.http.post("/tokenize", json={"content": TEXT, "with_pieces": True}).json()
    assert [one["id"] for one in told["tokens"]] == tokens
    assert [one["piece"] for one in told["tokens"]] == pieces
    back = shared.http.post("/detokenize", json={"tokens": tokens}).json()
    assert back == {"prompt": TEXT, "content": TEXT}


def test_a_conversation_has_as_many_tokens_as_its_chat_is_charged(shared: LiveServer) -> None:
    told = shared.http.post("/tokenize", json={"messages": MESSAGES}).json()
    chat = shared.chat(messages=MESSAGES, max_tokens=1).json()
    assert told["count"] == len(told["tokens"]) == chat["usage"]["prompt_tokens"]
    text = shared.http.post("/detokenize", json={"tokens": told["tokens"]}).json()["prompt"]
    assert text == f"<|user|>{TEXT}<|end|><|assistant|>"


def test_a_conversation_is_rendered_as_a_chat_would_be(speaking: LiveServer) -> None:
    def text(**body: Any) -> str:
        told = speaking.http.post("/tokenize", json={"messages": MESSAGES, **body}).json()
        decoded = speaking.http.post("/detokenize", json={"tokens": told["tokens"]}).json()
        prompt: str = decoded["prompt"]
        return prompt

    assert text(add_generation_prompt=False) == f"<|user|>{TEXT}<|end|>"
    assert text(tools=[WEATHER]).startswith("TOOLS")
    begun = [*MESSAGES, {"role": "assistant", "content": "Well"}]
    assert text(messages=begun, continue_final_message=True).endswith("<|assistant|>Well")
    assert text(chat_template_kwargs={"enable_thinking": False}).endswith("<think></think>")


def test_a_text_may_be_longer_than_what_can_be_served(shared: LiveServer) -> None:
    count = shared.http.post("/tokenize", json={"prompt": "x " * 2 * MAX_MODEL_LEN}).json()["count"]
    assert count > MAX_MODEL_LEN


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "content": "x"}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "x" * 2**19}, "prompt"),
        ("/tokenize", {"prompt": "x", "pieces": True}, "pieces"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": MESSAGES, "tools": [{}]}, "tools[0].type"),
        ("/tokenize", {"messages": [{"role": "me", "content": ""}]}, "messages[0].role"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("/detokenize", {"tokens": "text"}, "tokens"),
    ],
)
def test_bad_bodies(shared: LiveServer, path: str, body: Any, field: str) -> None:
    response = shared.http.post(path, json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == field
