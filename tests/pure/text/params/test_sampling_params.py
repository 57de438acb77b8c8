from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import RequestError
from quire.text.params import SamplingParams

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


def refusal(**given: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**given)
    assert caught.value.field in str(caught.value)
    assert len(str(caught.value)) < 350, "it echoes what was sent"
    return caught.value


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    assert refusal(**{field: value}).field == field


# The most that is allowed, one more, and the limit that the error must tell.
LIMITS: list[tuple[str, Any, Any, str]] = [
    ("n", 256, 257, "256"),
    ("best_of", 256, 257, "256"),
    ("top_k", 2**31 - 1, 2**31, "2147483647"),
    ("max_tokens", 2**31 - 1, 2**31, "2147483647"),
    ("seed", 2**64 - 1, 2**64, str(2**64 - 1)),
    ("logprobs", 100, 101, "100"),
    ("prompt_logprobs", 100, 101, "100"),
    ("stop", ["x"] * 64, ["x"] * 65, "64"),
    ("stop", "x" * 256, "x" * 257, "256"),
    ("bad_words", ["x"] * 128, ["x"] * 129, "128"),
    ("bad_words", ["x" * 256], ["x" * 257], "256"),
    ("stop_token_ids", range(128), range(129), "128"),
    ("allowed_token_ids", range(2**18), range(2**18 + 1), "262144"),
    ("logit_bias", dict.fromkeys(range(1024), 1), dict.fromkeys(range(1025), 1), "1024"),
    ("stop_token_ids", [2**31 - 1], [2**31], "2147483647"),
]


@pytest.mark.parametrize(("field", "most", "more", "limit"), LIMITS)
def test_each_limit_is_told_and_is_where_it_says(
    field: str, most: Any, more: Any, limit: str
) -> None:
    SamplingParams(**{field: most})
    error = refusal(**{field: more})
    assert error.field == field and limit in str(error)


NUMBERS = [
    "n", "best_of", "beam_width", "num_return_sequences", "length_penalty", "early_stopping",
    "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs", "prompt_logprobs",
]  # fmt: skip


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("number", [2**2000, -(2**2000), 10**400, 10**5000], ids=int.bit_length)
@pytest.mark.parametrize("field", NUMBERS)
def test_numbers_that_no_library_can_hold_are_refused(
    field: str, number: int, search: bool
) -> None:
    assert refusal(**{"use_beam_search": search, field: number}).field == field


@pytest.mark.parametrize(
    "number",
    [2**2000, 10**5000, -1, True, 0.5, "x" * 10**6, [[]] * 10**6],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids"])
def test_what_is_no_token_id_is_refused(field: str, number: Any) -> None:
    assert refusal(**{field: [1, 2, number, 3]}).field == field
    if not isinstance(number, list):  # which is no key
        assert refusal(logit_bias={2: 0.0, number: 0.0}).field == "logit_bias"


@pytest.mark.parametrize("bias", [2**2000, -(10**400), 1e308, -100.1, float("nan"), True, "x"])
def test_a_bias_is_a_number_of_at_most_100(bias: Any) -> None:
    assert refusal(logit_bias={1: 0.0, 2: bias}).field == "logit_bias"


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, [["x"] * 10**6] * 10, {"x": 10**5000}, b"\xff"],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("field", [*NUMBERS, "stop_token_ids", "bad_words", "logit_bias"])
def test_errors_do_not_echo_what_was_sent(field: str, value: Any) -> None:
    refusal(**{field: value})


def test_huge_but_finite_numbers_are_served() -> None:
    SamplingParams(temperature=1e308, repetition_penalty=1e308)


@pytest.mark.parametrize(("n", "logprobs"), [(128, 20), (1, 100), (25, 100), (256, 10), (256, 0)])
def test_logprobs_of_many_outputs(n: int, logprobs: int) -> None:
    SamplingParams(n=n, logprobs=logprobs)


@pytest.mark.parametrize(
    ("given", "room"),
    [
        ({"n": 128, "logprobs": 21}, "from 0 to 20 with 128 outputs"),
        ({"n": 1, "best_of": 256, "logprobs": 11}, "from 0 to 10 with 256 outputs"),
        ({"n": 256, "allowed_token_ids": range(1025)}, "at most 1024"),
        ({"n": 256, "use_beam_search": True, "stop_token_ids": range(3)}, "at most 2 "),
    ],
)
def test_what_outputs_multiply_is_bounded_for_all_of_them(given: dict[str, Any], room: str) -> None:
    assert room in str(refusal(**given))


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
