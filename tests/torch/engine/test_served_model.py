"""The demonstration model behind the real server, driven by OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx
import jsonschema
import pytest
from openai import APIError, BadRequestError, OpenAI

from quire import LLM
from quire.models.demo import DEMO_MODEL
from quire.text.tokenizer import load_tokenizer
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


def test_what_evaluation_harnesses_send_is_scored_as_by_transformers() -> None:
    """lm-evaluation-harness: a context with each of its choices, in one request, as token ids.

    It reads what is told of the tokens after the context, but for the one that is generated.
    """
    import torch
    from transformers import AutoModelForCausalLM

    contexts = ["The list has three elements, and the first of them is", "A set holds"]
    choices = [" a number", " a string that nobody wrote", " it"]
    with served_model(**OPTIONS, dtype="float32", block_size=4) as client:
        encode = load_tokenizer(DEMO_MODEL).encode
        asked = [
            (len(encode(context)), encode(context + choice))
            for context in contexts
            for choice in choices
        ]
        body: dict[str, Any] = {"temperature": 0, "logprobs": 1, "seed": 1234, "echo": True}
        answers = [
            client.completions.create(
                model="quire-demo", prompt=[ids for _, ids in asked], max_tokens=1, **body
            ),
            client.completions.create(
                model="quire-demo", prompt=[ids for _, ids in asked], max_tokens=0, **body
            ),
        ]
    model = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32).eval()
    for number, (start, ids) in enumerate(asked):
        with torch.no_grad():
            truth = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        for written, answer in enumerate(reversed(answers)):
            logprobs = answer.choices[number].logprobs
            assert logprobs is not None and logprobs.token_logprobs is not None
            assert len(logprobs.token_logprobs) == len(ids) + written
            found = logprobs.token_logprobs[start : len(ids)]
            expected = [truth[i - 1, ids[i]].item() for i in range(start, len(ids))]
            assert found == pytest.approx(expected, abs=1e-4)
            likeliest = [max(top.values()) for top in logprobs.top_logprobs[start : len(ids)]]
            expected = truth[start - 1 : len(ids) - 1].max(-1).values.tolist()
            assert likeliest == pytest.approx(expected, abs=1e-4)
    usage = [answer.usage for answer in answers]
    assert [one.completion_tokens for one in usage if one] == [len(asked), 0]


MESSAGES: Any = [{"role": "user", "content": "Hi"}]


def test_what_looks_like_an_end_is_text_at_every_door(client: OpenAI) -> None:
    asked = {"structured_outputs": {"choice": ["a<|end|>b", "<|user|>"]}}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "a<|end|>b"}}}
    assert set(online(client, asked, n=3)) <= {"a<|end|>b", "<|user|>"}
    for extra in (asked, {"response_format": schema}):
        chat = client.chat.completions.create(
            model="quire-demo", messages=MESSAGES, max_tokens=40, extra_body=extra
        )
        assert chat.choices[0].message.content in ("a<|end|>b", "<|user|>", '"a<|end|>b"')
        assert chat.choices[0].finish_reason == "stop"
    answer = client.responses.create(
        model="quire-demo", input="Hi", max_output_tokens=40,
        text={"format": {"type": "json_schema", "name": "x", "schema": {"const": "a<|end|>b"}}},
    )  # fmt: skip
    assert answer.output_text == '"a<|end|>b"'


def test_a_grammar_that_nothing_can_follow_ends_the_request_with_an_error(client: OpenAI) -> None:
    extra = {"structured_outputs": {"regex": "x+"}, "allowed_token_ids": [5]}
    body: dict[str, Any] = {"model": "quire-demo", "prompt": "Hi", "max_tokens": 5}
    with pytest.raises(BadRequestError, match="leave no token"):
        client.completions.create(**body, extra_body=extra)
    with pytest.raises(APIError, match="leave no token"):
        list(client.completions.create(**body, extra_body=extra, stream=True))


def test_a_schema_that_is_too_deep_is_refused_and_the_server_lives(client: OpenAI) -> None:
    links = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3_000)} | {"d3000": {}}
    asked = {"structured_outputs": {"json": {"$ref": "#/$defs/d0", "$defs": links}}}
    with pytest.raises(BadRequestError, match="1,000 levels"):
        online(client, asked)
    assert online(client, {"structured_outputs": {"choice": ["yes"]}}) == ["yes"]


def test_whole_numbers_of_64_bits_are_kept_to_over_http(client: OpenAI) -> None:
    schema = {"enum": [1234567890123456789, -(2**63)]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    (text,) = online(client, {"response_format": form, "max_tokens": 40})
    assert int(text) in schema["enum"]


@pytest.mark.parametrize("number", ["0.12345678901234567890", "1234567890123456789.5", "1e400"])
def test_numbers_that_no_float_holds_are_kept_to_over_http(client: OpenAI, number: str) -> None:
    body = (
        '{"model": "quire-demo", "prompt": "Hi", "max_tokens": 40, "temperature": 0.5, '
        f'"structured_outputs": {{"json": {{"const": {number}}}}}}}'
    )
    kind = {"Content-Type": "application/json"}
    answer = httpx.post(f"{client.base_url}completions", content=body, headers=kind, timeout=60)
    assert answer.status_code == 200, answer.text
    assert Decimal(answer.json()["choices"][0]["text"]) == Decimal(number)
