from __future__ import annotations

from typing import Any

import pytest

from quire.errors import RequestError
from quire.scheduling import SamplingParams

BAD: list[tuple[str, Any]] = [
    ("n", 0), ("n", 1.0), ("n", True), ("n", 10**6),
    ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")),
    ("temperature", "hot"),
    ("top_p", 0.0), ("top_p", 1.1), ("top_p", float("nan")),
    ("top_k", -2), ("top_k", 1.5),
    ("min_p", -0.1), ("min_p", 1.01),
    ("seed", "x"), ("seed", 2**64),
    ("max_tokens", 0), ("max_tokens", 2.0),
    ("min_tokens", -1), ("min_tokens", 17),
    ("stop", ["a", ""]), ("stop", [1]), ("stop", 3),
    ("stop_token_ids", [-1]), ("stop_token_ids", ["a"]), ("stop_token_ids", 5),
    ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("repetition_penalty", 0.0),
    ("logit_bias", {1: 101.0}), ("logit_bias", {-1: 0.0}), ("logit_bias", {"a": 0.0}),
    ("allowed_token_ids", []), ("bad_words", "word"), ("bad_words", [""]),
    ("logprobs", -1), ("logprobs", 1000), ("prompt_logprobs", -1),
    ("ignore_eos", 1), ("detokenize", "yes"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="end").stop == ("end",)


def test_stop_strings_need_text() -> None:
    with pytest.raises(RequestError, match="detokenize"):
        SamplingParams(stop="end", detokenize=False)


def test_an_unlimited_request_takes_any_min_tokens() -> None:
    assert SamplingParams(max_tokens=None, min_tokens=1000).min_tokens == 1000


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, False),
        ({"temperature": 0.0, "top_k": 5, "logit_bias": {1: 2.0}}, False),
        ({"presence_penalty": 0.5}, True),
        ({"frequency_penalty": 0.5}, True),
        ({"repetition_penalty": 1.1}, True),
        ({"bad_words": ["x"]}, True),
    ],
)
def test_history_is_carried_only_where_it_is_needed(changes: dict[str, Any], needed: bool) -> None:
    assert SamplingParams(**changes).needs_history is needed
