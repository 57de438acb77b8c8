"""The demonstration model behind the real server, driven by OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from openai import BadRequestError, OpenAI

from quire import LLM
from support.served_model import served_model

OPTIONS: dict[str, Any] = {"kv_cache_memory_bytes": "16MiB", "scheduling_policy": "priority"}
PROMPT = "A list is"


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with served_model(**OPTIONS) as client:
        yield client


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(**OPTIONS)


def offline(llm: LLM, **params: Any) -> list[str]:
    sampling = llm.default_sampling_params(max_tokens=12, **params)
    outputs = llm.generate(PROMPT, sampling, use_tqdm=False)
    return [output.text for output in outputs[0].outputs]


def online(client: OpenAI, extra: dict[str, Any] | None = None, **body: Any) -> list[str]:
    completion = client.completions.create(
        model="quire-demo", prompt=PROMPT, max_tokens=12, extra_body=extra, **body
    )
    return [choice.text for choice in completion.choices]


def test_the_server_says_what_the_python_api_says(client: OpenAI, llm: LLM) -> None:
    assert online(client, temperature=0) == offline(llm, temperature=0.0)
    sampled = online(client, n=3, seed=4)  # at the temperature that the model asks for
    assert sampled == offline(llm, n=3, seed=4)
    assert sampled != offline(llm, n=3, seed=4, temperature=1.0, top_p=1.0)
    assert len(set(sampled)) == 3


def test_beam_search_over_http(client: OpenAI, llm: LLM) -> None:
    extra = {"use_beam_search": True, "length_penalty": 0.5}
    beams = online(client, extra, n=3)
    assert beams == offline(llm, n=3, use_beam_search=True, length_penalty=0.5)
    stream = client.completions.create(
        model="quire-demo", prompt=PROMPT, max_tokens=12, n=3, stream=True, extra_body=extra
    )
    streamed = ["", "", ""]
    for chunk in stream:
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == beams


def test_best_of_over_http(client: OpenAI, llm: LLM) -> None:
    assert online(client, best_of=4, n=2, seed=1) == offline(llm, best_of=4, n=2, seed=1)
    with pytest.raises(BadRequestError, match="best_of above n cannot be streamed"):
        client.completions.create(model="quire-demo", prompt=PROMPT, best_of=4, n=2, stream=True)


def test_a_chat_streams(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="quire-demo",
        messages=[{"role": "user", "content": "What is a list?"}],
        max_tokens=20,
        temperature=0,
        stream=True,
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert len(text.split()) > 3


def test_a_salt_keeps_prefixes_apart(client: OpenAI) -> None:
    prompt = "These words are long enough to fill some blocks of the cache, and more. " * 3

    def cached(salt: str) -> int:
        completion = client.completions.create(
            model="quire-demo", prompt=prompt, max_tokens=1, extra_body={"cache_salt": salt}
        )
        details = completion.usage and completion.usage.prompt_tokens_details
        return (details and details.cached_tokens) or 0

    assert cached("mine") == 0
    assert cached("mine") > 16
    assert cached("yours") == 0


def test_the_memory_story_is_told_on_request(client: OpenAI) -> None:
    extra = {"include_metrics": True, "priority": -1}
    completion = client.completions.create(
        model="quire-demo", prompt=PROMPT, max_tokens=40, n=2, extra_body=extra
    )
    (story,) = completion.model_dump()["metrics"]
    assert story["peak_blocks"] >= 3 and story["block_seconds"] > 0
    assert story["copied_blocks"] == 1 and story["num_preemptions"] == 0


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}, "n": {"type": "integer", "maximum": 99}},
    "required": ["city"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}


def test_a_schema_is_kept_to_whole_and_streamed(client: OpenAI) -> None:
    ask: dict[str, Any] = {
        "model": "quire-demo",
        "messages": [{"role": "user", "content": "Where?"}],
        "response_format": FORMAT,
        "temperature": 1.5,
        "seed": 3,
        "n": 2,
        "max_tokens": 200,
    }
    whole = client.chat.completions.create(**ask)
    for choice in whole.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), SCHEMA)
    texts = {0: "", 1: ""}
    for chunk in client.chat.completions.create(**ask, stream=True):
        for part in chunk.choices:
            texts[part.index] += part.delta.content or ""
    assert texts == {choice.index: choice.message.content for choice in whole.choices}


@pytest.mark.parametrize(
    "field",
    [
        {"structured_outputs": {"json": SCHEMA, "disable_fallback": True}},
        {"guided_json": json.dumps(SCHEMA), "guided_whitespace_pattern": "[ ]{1,2}"},
        {"response_format": FORMAT},
    ],
)
def test_a_schema_has_several_names(client: OpenAI, field: dict[str, Any]) -> None:
    answer = client.completions.create(
        model="quire-demo", prompt=PROMPT, max_tokens=200, seed=1, extra_body=field
    )
    jsonschema.validate(json.loads(answer.choices[0].text), SCHEMA)
