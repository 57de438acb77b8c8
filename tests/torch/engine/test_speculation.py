"""Speculation as it is configured: the same bits as without, whoever guesses, and it is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.engine.llm import LLM
from quire.engine.outputs import RequestOutput
from quire.execution.sampling import choosing
from quire.text.params import Reasoning, SamplingParams, StructuredOutputs

SETTINGS: dict[str, Any] = {"max_model_len": 512, "kv_cache_memory_bytes": "4MiB", "block_size": 8}
SCHEMA = {
    "type": "object",
    "properties": {"description": {"type": "string", "maxLength": 8}, "exceptions": {"enum": [1]}},
    "required": ["description", "exceptions"],
    "additionalProperties": False,
}
TEXT = "def chain(*iterables): return an iterator whose values are the values of the iterables. "
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 60, "ignore_eos": True}
PARAMS = [
    SamplingParams(**GREEDY, logprobs=2),
    SamplingParams(**GREEDY, prediction=TEXT * 2),
    SamplingParams(seed=3, n=3, max_tokens=40, ignore_eos=True, temperature=0.3, logprobs=1),
    SamplingParams(seed=4, max_tokens=40, frequency_penalty=0.6, temperature=0.4),
    SamplingParams(seed=5, max_tokens=40, stop=["iter", "values"], min_tokens=6),
    SamplingParams(seed=6, n=2, max_tokens=80, structured_outputs=StructuredOutputs(json=SCHEMA)),
    SamplingParams(seed=7, max_tokens=30, prompt_logprobs=1, top_p=0.7, bad_words=["the"]),
    SamplingParams(
        seed=8, max_tokens=40, thinking_token_budget=6,
        reasoning=Reasoning("a", "and so the answer is", open=True),
        structured_outputs=StructuredOutputs(regex="it repeats what is there(, again)*"),
    ),
    SamplingParams(use_beam_search=True, n=2, max_tokens=10),
]  # fmt: skip
PROMPTS = [TEXT * (1 + number % 3) + "The answer: " for number in range(len(PARAMS))]


def serve(llm: LLM) -> list[RequestOutput]:
    """One by one, and then all at once, when texts like these have been served before.

    On a machine whose steps all take the same, so that whatever may be right is worth a row.
    """
    llm.engine.clock = partial(next, count())
    pairs = zip(PROMPTS, PARAMS, strict=True)
    outputs = [llm.generate([one], [params], use_tqdm=False)[0] for one, params in pairs]
    outputs += llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    usage = llm.engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity, "leaked blocks"
    return outputs


def bits(outputs: list[RequestOutput]) -> list[Any]:
    found: list[Any] = []
    for one in outputs:
        for output in one.outputs:
            found.append((output.token_ids, output.text, output.finish_reason, output.stop_reason))
            for table in output.logprobs or ():
                found.append([(id, each.logprob.hex()) for id, each in table.items()])
        for entry in one.prompt_logprobs or ():
            found.append(entry and [(id, each.logprob.hex()) for id, each in entry.items()])
    return found


@pytest.fixture(scope="module")
def expected() -> Iterator[list[Any]]:
    without = [replace(params, prediction=None) for params in PARAMS]
    llm = LLM(**SETTINGS)
    yield bits(llm.generate(PROMPTS * 2, without * 2, use_tqdm=False))
    assert llm.engine.stats.num_drafts == 0


@pytest.mark.parametrize("most", [1, 3, 16])
@pytest.mark.parametrize("method", ["ngram", "suffix", "auto"])
def test_no_bit_changes(method: str, most: int, expected: list[Any]) -> None:
    asked = {"method": method, "num_speculative_tokens": most}
    llm = LLM(**SETTINGS, speculative_config=asked, max_num_batched_tokens=64)
    assert bits(serve(llm)) == expected
    told = f"Speculation: {method}, up to {most} drafts a sequence and step"
    kept = "" if method == "ngram" else ", 64 MiB for outputs served before"
    assert f"{told}{kept}." in llm.capacity.describe()
    stats = llm.engine.stats
    assert stats.num_accepted_tokens > 20 * most**0.5
    assert any(decision.what.value == "draft" for decision in llm.engine.decisions())
    speculation = llm.engine.capabilities.speculation
    assert speculation is not None and speculation.num_bytes > 0


def test_under_pressure_too(expected: list[Any]) -> None:
    tight = {**SETTINGS, "kv_cache_memory_bytes": "560KiB", "max_model_len": 200}
    tight["swap_space"] = 0.01
    for mode in ("swap", "recompute"):
        if mode == "recompute":
            del tight["swap_space"]
        llm = LLM(**tight, preemption_mode=mode, speculative_config={"method": "auto"})
        assert bits(serve(llm)) == expected
        assert llm.engine.scheduler.stats.num_preemptions > 0
        assert llm.engine.stats.num_accepted_tokens > 20


def test_a_prediction_is_used_where_nobody_else_is_drafted_for(expected: list[Any]) -> None:
    llm = LLM(**SETTINGS)
    found = serve(llm)
    assert bits(found) == expected
    counts = [one.metrics.num_draft_tokens > 0 for one in found]
    assert counts == [params.prediction is not None for params in PARAMS * 2]


def test_what_a_grammar_forces_is_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_FORCED", 10.0)  # seconds, however busy the machine is
    monkeypatch.setattr(choosing, "patience", lambda *given: 10.0)
    llm = LLM(**SETTINGS, speculative_config={"method": "ngram"})
    llm.engine.clock = partial(next, count())
    llm.generate([TEXT], [SamplingParams(max_tokens=4)], use_tqdm=False)  # so steps are measured
    asked = StructuredOutputs(regex="a sentence that nobody has ever written, or (yes|no)")
    params = SamplingParams(temperature=0.0, structured_outputs=asked, max_tokens=40)
    (found,) = llm.generate(["Quite another text: "], [params], use_tqdm=False)
    assert found.outputs[0].text.startswith("a sentence that nobody has ever written, or ")
    assert found.metrics.num_accepted_tokens >= 8


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"method": "eagle"}, "method must be one of auto, ngram, suffix, draft; got 'eagle'"),
        ({"methd": "ngram"}, "unknown option methd; did you mean method"),
        ({"num_speculative_tokens": 17}, "num_speculative_tokens must be an integer from 1 to 16"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens must be an integer from 1 to 16"),
        (
            {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 3},
            "prompt_lookup_min must be an integer",
        ),
        ({"method": "ngram", "model": "small"}, 'model does nothing with method "ngram"'),
        ({"prompt_lookup_max": 4}, 'prompt_lookup_max does nothing with method "auto"'),
        (
            {"method": "ngram", "suffix_decoding_min_token_prob": 0.2},
            'suffix_decoding_min_token_prob does nothing with method "ngram"',
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match="speculative_config: ") as refused:
        LLM(**SETTINGS, speculative_config=asked)
    assert why in str(refused.value)
