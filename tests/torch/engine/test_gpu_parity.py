"""An engine put together as on a GPU, its kernels interpreted, gives the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, PoolingParams, SamplingParams
from quire.core.protocol import PendingStep, Step
from quire.engine.assembly import engine as assembly
from quire.engine.outputs import RequestOutput
from quire.execution.executor import ModelExecutor
from quire.models import loader
from quire.text.params import Pooling
from support.drafting import Drafting, knowing
from support.gpu_kernels import INTERPRETED, TRITON
from support.hf_reference import random_prompts
from support.interpreted import BLOCK_SIZE, Interpreted

pytestmark = pytest.mark.skipif(not (TRITON and INTERPRETED), reason="for Triton's interpreter")

ModelDir = Callable[[str], Path]


def generate(
    directory: Path,
    blocks: int | None,
    prompts: list[list[int]],
    params: SamplingParams | list[SamplingParams],
    **options: Any,
) -> tuple[list[list[int]], int]:
    """Every output's tokens, and how many sequences were swapped. No ``blocks``: enough."""
    # Two layers with two heads of 16 dimensions: in int8 a number and its scale take less.
    bytes_per_token = 2 * 2 * 2 * (16 + 4) if options.get("kv_cache_dtype") == "int8" else 512
    llm = LLM(
        directory,
        dtype="float32",
        block_size=BLOCK_SIZE,
        max_model_len=32,
        max_num_seqs=8,
        kv_cache_memory_bytes=None if blocks is None else blocks * BLOCK_SIZE * bytes_per_token,
        **options,
    )
    assert blocks is None or llm.capacity.num_blocks == blocks
    outputs = llm.generate(prompts, params, use_tqdm=False)
    tokens = [list(one.token_ids) for output in outputs for one in output.outputs]
    return tokens, sum(output.metrics.num_swaps for output in outputs)


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_tokens_are_those_of_the_cpu_engine(
    kv_cache_dtype: str, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though sequences fork, and are swapped for want of room.

    In int8, those of a GPU engine that swaps nothing: CPUs spread what they round.
    """
    directory, prompts = model_dir("qwen2"), random_prompts(9, 6)
    params = SamplingParams(n=2, seed=3, max_tokens=6, ignore_eos=True)
    if kv_cache_dtype == "auto":
        expected, _ = generate(directory, 64, prompts, params)
    monkeypatch.setattr(assembly, "_choose_runtime", lambda config: Interpreted())
    if kv_cache_dtype == "int8":
        expected, _ = generate(directory, 64, prompts, params, kv_cache_dtype="int8")
    found, num_swaps = generate(
        directory,
        9,
        prompts,
        params,
        kv_cache_dtype=kv_cache_dtype,
        swap_space=0.001,
        preemption_mode="swap",
    )
    assert found == expected
    assert num_swaps > 0


@pytest.mark.parametrize("family", ["qwen2_moe", "gpt_oss", "mimo_v2_flash"])
def test_a_mixture_of_experts(
    family: str, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps are padded as recorded ones are."""
    directory, prompts = model_dir(family), random_prompts(5, 14)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    expected, _ = generate(directory, None, prompts, params)
    monkeypatch.setattr(assembly, "_choose_runtime", lambda config: Interpreted())
    # Weights as they are on a GPU: none is packed.
    monkeypatch.setattr(loader, "choose_products", lambda *_: None)
    assert generate(directory, None, prompts, params) == (expected, 0)


def test_tokens_do_not_depend_on_running_ahead(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decodes are padded as replayed ones are, and get their tokens from the step before."""
    monkeypatch.setattr(assembly, "_choose_runtime", lambda config: Interpreted())
    submit, ahead = ModelExecutor.submit, []

    def note(executor: ModelExecutor, step: Step) -> PendingStep:
        ahead.append(step.ahead)
        return submit(executor, step)

    monkeypatch.setattr(ModelExecutor, "submit", note)
    prompts = random_prompts(9, 5)
    params = [
        SamplingParams(temperature=0.0, max_tokens=6, logprobs=2, ignore_eos=True),
        SamplingParams(seed=4, top_k=5, max_tokens=7, ignore_eos=True),
    ]
    expected = generate(model_dir("qwen2_window"), None, prompts, params, async_scheduling=False)
    assert not any(ahead)
    assert (
        generate(model_dir("qwen2_window"), None, prompts, params, async_scheduling=True)
        == expected
    )
    assert sum(ahead) >= 5


def test_tokens_do_not_depend_on_drafts(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that verify them stand beside those of others in one batch."""
    monkeypatch.setattr(assembly, "_choose_runtime", lambda config: Interpreted())
    prompts = random_prompts(9, 6, 5)
    params = [
        SamplingParams(temperature=0.0, max_tokens=7, ignore_eos=True),
        SamplingParams(seed=3, max_tokens=6, logprobs=2, ignore_eos=True),
        SamplingParams(seed=4, n=2, max_tokens=6, frequency_penalty=0.5, ignore_eos=True),
    ]
    llm = LLM(model_dir("qwen2_window"), dtype="float32", block_size=BLOCK_SIZE, max_model_len=64)
    expected = llm.generate(prompts, params, use_tqdm=False)
    truth = {str(i): [o.token_ids for o in one.outputs] for i, one in enumerate(expected)}
    drafting = Drafting(llm.engine.scheduler, knowing(truth, 0.6, 100))
    found = llm.generate(prompts, params, use_tqdm=False)
    assert facts(found) == pytest.approx(facts(expected), abs=1e-4)
    assert drafting.num_drafts > 10


def facts(outputs: list[RequestOutput]) -> list[float]:
    """Tokens, and log-probabilities, which products by a library may round in another way."""
    branches = [one for output in outputs for one in output.outputs]
    logprobs = [
        one.logprob for b in branches for table in b.logprobs or () for one in table.values()
    ]
    return [token for branch in branches for token in branch.token_ids] + logprobs


def test_vectors_beside_texts(model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of prompts in chunks, while steps run ahead; and scored prompts."""
    asked: list[SamplingParams | PoolingParams] = [
        *map(PoolingParams, Pooling),
        SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True),
        SamplingParams(max_tokens=0, prompt_logprobs=0),
    ]
    prompts = random_prompts(7, 3, 7, 4, 2, 5)

    def finals() -> list[RequestOutput]:
        sizes = {"max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 9}
        llm = LLM(model_dir("qwen2"), dtype="float32", block_size=BLOCK_SIZE, **sizes)
        for number, (prompt, params) in enumerate(zip(prompts, asked, strict=True)):
            llm.engine.add_request(str(number), prompt, params)
        found = {}
        while llm.engine.has_work:
            found |= {d.request_id: d.final for d in llm.engine.step() if d.final is not None}
        return [found[name] for name in sorted(found)]

    expected = finals()
    monkeypatch.setattr(assembly, "_choose_runtime", lambda config: Interpreted())
    found = finals()
    assert facts(found) == pytest.approx(facts(expected), abs=1e-4)
    for mine, theirs in zip(found[: len(Pooling)], expected, strict=False):
        assert theirs.vector and list(mine.vector or ()) == pytest.approx(
            [*theirs.vector], abs=1e-5
        )
    scores = [
        [
            one.logprob
            for table in (outputs[-1].prompt_logprobs or ())
            for one in (table or {}).values()
        ]
        for outputs in (found, expected)
    ]
    assert len(scores[0]) == 4 and scores[0] == pytest.approx(scores[1], abs=1e-4)
