"""Real models give the same outputs whether steps are begun ahead or not.

In main memory a step is done once it has been submitted; what is tried here is that its tokens
reach the next one, and that what each request asks for is drawn as it is without.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError, EngineError
from quire.core.protocol import PendingStep, Step
from quire.engine.outputs import RequestOutput
from quire.execution.device_runtime import OnCPU
from quire.execution.executor import ModelExecutor
from quire.execution.sampling import choosing
from quire.execution.sampling.sampler import Draws, draw
from support.hf_reference import random_prompts

ModelDir = Callable[[str], Path]

ASKED: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 3},
    {"seed": 1},
    {"seed": 2, "top_k": 7},
    {"seed": 3, "top_p": 0.8, "logprobs": 0},
    {"seed": 4, "min_p": 0.1, "temperature": 2.0},
    {"seed": 5, "n": 3},
    {"seed": 6, "min_tokens": 12},
    {"temperature": 0.0, "logit_bias": {5: 4.0, 9: -100.0}},
    {"seed": 7, "allowed_token_ids": [4, 5, 6, 7, 8, 11]},
    {"temperature": 0.0, "stop_token_ids": list(range(3, 40))},
    {"seed": 8, "prompt_logprobs": 1},
]
WITH_HISTORY: list[dict[str, Any]] = [  # whose next token takes the one before
    {"seed": 9, "presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"seed": 10, "repetition_penalty": 0.8, "top_k": 9, "logprobs": 2},
]
BEAMS: list[dict[str, Any]] = [{"use_beam_search": True, "n": 2}]


@pytest.fixture
def steps_ahead(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each step that is submitted, whether it was planned ahead; the CPU allows it here."""
    monkeypatch.setattr(OnCPU, "asynchronous", True)
    submit, ahead = ModelExecutor.submit, []

    def note(executor: ModelExecutor, step: Step) -> PendingStep:
        ahead.append(step.ahead)
        return submit(executor, step)

    monkeypatch.setattr(ModelExecutor, "submit", note)
    return ahead


def generate(
    directory: Path, asked: list[dict[str, Any]], blocks: int, **options: Any
) -> list[RequestOutput]:
    llm = LLM(
        directory,
        dtype="float32",
        block_size=4,
        max_model_len=64,
        max_num_seqs=8,
        max_num_batched_tokens=24,
        kv_cache_memory_bytes=blocks * 4 * 1024,
        **options,
    )
    prompts = random_prompts(*(5 + 3 * i % 17 for i in range(len(asked))))
    params = [SamplingParams(max_tokens=20 - i % 5, **one) for i, one in enumerate(asked)]
    return llm.generate(prompts, params, use_tqdm=False)


def assert_same(found: list[RequestOutput], expected: list[RequestOutput]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        for one, other in zip(mine.outputs, theirs.outputs, strict=True):
            assert one.token_ids == other.token_ids
            assert one.text == other.text
            assert (one.finish_reason, one.stop_reason) == (other.finish_reason, other.stop_reason)
            assert one.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-3)
            for table, reference in zip(one.logprobs or [], other.logprobs or [], strict=True):
                assert table.keys() == reference.keys()
        assert len(mine.prompt_logprobs or []) == len(theirs.prompt_logprobs or [])


@pytest.mark.parametrize("blocks", [40, 128])
@pytest.mark.parametrize("family", ["llama", "opt"])
def test_outputs_are_those_of_an_engine_that_waits(
    family: str, blocks: int, model_dir: ModelDir, steps_ahead: list[bool]
) -> None:
    expected = generate(model_dir(family), ASKED, blocks, async_scheduling=False)
    assert not any(steps_ahead)
    assert_same(generate(model_dir(family), ASKED, blocks), expected)
    assert sum(steps_ahead) > len(steps_ahead) / 5


def test_penalties_count_the_token_that_was_under_way(
    model_dir: ModelDir, steps_ahead: list[bool]
) -> None:
    expected = generate(model_dir("llama"), WITH_HISTORY, 128, async_scheduling=False)
    assert_same(generate(model_dir("llama"), WITH_HISTORY, 128), expected)
    assert sum(steps_ahead) > len(steps_ahead) / 3


def test_beams_are_waited_for(model_dir: ModelDir, steps_ahead: list[bool]) -> None:
    expected = generate(model_dir("llama"), BEAMS, 128, async_scheduling=False)
    assert_same(generate(model_dir("llama"), BEAMS, 128), expected)
    assert not any(steps_ahead)
    together = [*BEAMS, *WITH_HISTORY, *ASKED]
    expected = generate(model_dir("llama"), together, 64, async_scheduling=False)
    assert_same(generate(model_dir("llama"), together, 64), expected)
    assert any(steps_ahead)


@pytest.mark.parametrize("calls", [1, 2, 5])
@pytest.mark.parametrize("asked", [{"seed": 1}, {"seed": 1, "top_k": 7}])
def test_a_failure_to_choose_ends_what_it_concerns(
    asked: dict[str, Any],
    calls: int,
    model_dir: ModelDir,
    steps_ahead: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether tokens are chosen with their step or with the next."""
    llm = LLM(model_dir("llama"), dtype="float32", kv_cache_memory_bytes="1MiB", max_model_len=64)
    prompts, params = random_prompts(5, 9), SamplingParams(max_tokens=12, **asked)
    expected = llm.generate(prompts, params, use_tqdm=False)
    left = [calls]

    def fail(*args: Any) -> Draws:
        left[0] -= 1
        if not left[0]:
            raise MemoryError("no room to choose")
        return draw(*args)

    monkeypatch.setattr(choosing, "draw", fail)
    with pytest.raises(EngineError, match="failed"):
        llm.generate(prompts, params, use_tqdm=False)
    assert_same(llm.generate(prompts, params, use_tqdm=False), expected)
    assert any(steps_ahead)


def test_without_a_device_of_its_own_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="async_scheduling needs a GPU"):
        LLM(async_scheduling=True)
