"""Texts and lists that are too long are refused by name, before anything is made of them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from support.live_server import MODEL, LiveServer

LONG = "x" * 10**6


def refused(response: httpx.Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    assert len(error["message"]) < 350, "it echoes what was sent"
    return response.status_code, error["param"], error["message"]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"prompt": LONG}, "prompt", "has 1000000 characters"),
        ({"prompt": ["a", LONG]}, "prompt", "has 1000000 characters"),
        ({"prompt": [5] * 10**5}, "prompt", "has 100000 tokens"),
        ({"prompt": [[5], [5] * 10**5]}, "prompt", "has 100000 tokens"),
        ({"stop": LONG}, "stop", "1 to 256 characters"),
        ({"stop": ["x"] * 10**5}, "stop", "at most 64"),
        ({"bad_words": ["x"] * 129}, "bad_words", "at most 128"),
        ({"bad_words": [LONG]}, "bad_words", "1 to 256 characters"),
        ({"logit_bias": dict.fromkeys(map(str, range(1025)), 1)}, "logit_bias", "at most 1024"),
        ({"stop_token_ids": [1] * 129}, "stop_token_ids", "at most 128"),
        ({"allowed_token_ids": [1] * 4097}, "allowed_token_ids", "at most 4096"),
        ({"n": 16, "logprobs": 100, "best_of": 32}, "logprobs", "from 0 to 80"),
        ({"priority": 1001}, "priority", "from -1,000 to 1,000"),
        ({"priority": 2**2000}, "priority", "from -1,000 to 1,000"),
        ({"priority": -(10**308)}, "priority", "from -1,000 to 1,000"),
        ({"top_k": 2**2000}, "top_k", "2147483647"),
        ({"min_tokens": 2**2000}, "min_tokens", "from 0 to"),
        ({"max_tokens": 2**2000}, "max_tokens", "2147483647"),
        ({"seed": 2**2000}, "seed", "18446744073709551615"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_completion(shared: LiveServer, body: dict[str, Any], param: str, said: str) -> None:
    status, field, message = refused(shared.complete(**{"prompt": "Once", **body}))
    assert (status, field) == (400, param)
    assert said in message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 300}] * 100}, "messages"),
        ({"messages": [{"role": "user", "content": "long " * 2000}]}, "messages"),
        ({"chat_template_kwargs": {"x": LONG}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x": [[1]] * 5000}}, "chat_template_kwargs"),
        ({"priority": 2**2000}, "priority"),
        ({"logprobs": True, "top_logprobs": 100, "n": 16, "best_of": 32}, "top_logprobs"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_chat(shared: LiveServer, body: dict[str, Any], param: str) -> None:
    assert refused(shared.chat(**body))[:2] == (400, param)


def test_a_session(shared: LiveServer) -> None:
    session = shared.http.post("/v1/sessions", json={"model": MODEL}).json()["id"]
    path = f"/v1/sessions/{session}"
    try:
        for given, said in ((LONG, "has 1000000 characters"), ([5] * 10**5, "has 100000 tokens")):
            status, field, message = refused(
                shared.http.post(f"{path}/append", json={"input": given})
            )
            assert (status, field) == (400, "input")
            assert said in message
        shared.http.post(f"{path}/append", json={"input": "Once"})
        answer = shared.http.post(f"{path}/generate", json={"priority": 2**2000})
        assert refused(answer)[:2] == (400, "priority")
    finally:
        shared.http.delete(path)


def test_what_is_just_short_enough_is_served(shared: LiveServer) -> None:
    body = {
        "prompt": [5] * 250,
        "max_tokens": 2,
        "stop": ["x" * 256] * 64,
        "bad_words": ["x" * 256] * 128,
        "logit_bias": dict.fromkeys(map(str, range(1024)), 1),
        "stop_token_ids": list(range(5, 133)),
        "allowed_token_ids": list(range(4096)),
    }
    assert shared.complete(**body).status_code == 200
    assert shared.complete(prompt="x", n=16, logprobs=100, max_tokens=1).status_code == 200
