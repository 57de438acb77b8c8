"""Bodies have the fields of SamplingParams, and tell what these tell of themselves."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from quire.http.openai.requests import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    TurnRequest,
)
from quire.text.params import SamplingParams
from quire.text.params.parameters import description

BODIES = [CompletionRequest, ChatRequest, TurnRequest]


@pytest.mark.parametrize("body", BODIES)
def test_openapi_tells_of_every_parameter(body: type[GenerationRequest]) -> None:
    told = body.model_json_schema()["properties"]
    for parameter in fields(SamplingParams):
        name = parameter.name
        if name == "logprobs" and body is ChatRequest:  # OpenAI's flag for its top_logprobs
            assert told[name]["type"] == "boolean" and "top_logprobs" in told
        elif parameter.metadata["http"]:
            *kinds, null = told[name]["anyOf"]
            assert told[name]["description"] == description(parameter)
            assert told[name]["default"] is None and null == {"type": "null"}
            bounds = parameter.metadata["allowed"].schema.items()
            assert kinds[0].items() >= dict(bound for bound in bounds if bound[0] != "enum").items()
        else:
            assert name not in told


VALUES: dict[str, Any] = {
    "bool": True, "int": 1, "float": 0.5, "str | Sequence[str]": ["a"], "Sequence[str]": ["a"],
    "Sequence[int]": [7], "Mapping[int, float]": {"7": 1.5},
    "StructuredOutputs": {"regex": "a"}, "str": {"type": "content", "content": "a"},
}  # fmt: skip
SEARCH = ("beam_width", "num_return_sequences", "length_penalty", "early_stopping")


@pytest.mark.parametrize("parameter", fields(SamplingParams), ids=lambda field: field.name)
def test_a_field_is_the_parameter_of_its_name(parameter: Any) -> None:
    if not parameter.metadata["http"] or parameter.name in SEARCH:
        return
    value = VALUES[parameter.type.removesuffix(" | None")]
    body = CompletionRequest(model="m", prompt="p", **{parameter.name: value})
    expected = {"logit_bias": {7: 1.5}, "prediction": "a"}.get(parameter.name, value)
    assert body.sampling_params({}) == SamplingParams(**{parameter.name: expected})
    absent = CompletionRequest(model="m", prompt="p", **{parameter.name: None})
    assert absent.sampling_params({}) == SamplingParams()


def test_the_fields_of_a_beam_search() -> None:
    given = {"use_beam_search": True, "beam_width": 4, "num_return_sequences": 2,
             "length_penalty": 0.5, "early_stopping": "never"}  # fmt: skip
    body = CompletionRequest(model="m", prompt="p", **given)
    assert body.sampling_params({"temperature": 0.5}) == SamplingParams(**given)
