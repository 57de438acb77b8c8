"""What a request asks for beside tokens is timed: what nobody asks for takes no time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from quire.engine.llm import LLM
from quire.text.params import SamplingParams

PROMPT = "Once upon a time there was " * 4


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    made = LLM(max_model_len=256)
    yield made
    made.engine.close()


def beside(llm: LLM, *asked: dict[str, Any]) -> list[float]:
    """Seconds of requests that run together."""
    params = [SamplingParams(**{"max_tokens": 6, "seed": 1, **fields}) for fields in asked]
    outputs = llm.generate([PROMPT] * len(params), params, use_tqdm=False)
    return [output.metrics.beside_seconds for output in outputs]


@pytest.mark.parametrize(
    "asked",
    [
        {"logprobs": 5},
        {"prompt_logprobs": 0},
        {"logit_bias": {5: 1.0}},
        {"bad_words": ["was"]},
        {"repetition_penalty": 1.2},
        {"stop": ["§"]},
        {"temperature": 2.0, "top_p": 0.99},  # which keeps most of all tokens
        {"use_beam_search": True, "beam_width": 2, "temperature": 0.0, "seed": None},
        {"n": 2, "logprobs": 0},
    ],
    ids=str,
)
def test_who_asks_for_something_is_told_what_it_took_and_others_nothing(
    llm: LLM, asked: dict[str, Any]
) -> None:
    mine, others = beside(llm, asked, {"temperature": 0.0, "max_tokens": 12})
    assert 0 < mine < 1 and others == 0
    assert not llm.engine.scheduler._beside._sitting


def test_time_is_divided_by_what_each_asks_for(llm: LLM) -> None:
    biases = dict.fromkeys(range(1000), -1.0)
    much, little = beside(llm, {"logit_bias": biases}, {"logit_bias": {5: 1.0}})
    assert much > 100 * little > 0


def test_turns_change_no_text(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [
        {"max_tokens": 12, "seed": seed, "logprobs": 3, "n": 1 + seed % 2} for seed in range(5)
    ]

    def texts() -> Any:
        params = [SamplingParams(**fields) for fields in asked]
        outputs = llm.generate([PROMPT] * 5, params, use_tqdm=False)
        return [[(one.token_ids, one.logprobs) for one in output.outputs] for output in outputs]

    expected = texts()
    before = llm.engine.scheduler.stats.decisions["sit_out"]
    monkeypatch.setattr("quire.core.scheduling.sharing.BESIDE_SECONDS", 1e-6)
    monkeypatch.setattr("quire.core.scheduling.sharing.BESIDE_SHARE", 0.0)
    assert texts() == expected
    assert llm.engine.scheduler.stats.decisions["sit_out"] > before
