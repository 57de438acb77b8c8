"""The engine on a GPU with models whose layers keep states: the CPU's tokens, however they come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, SamplingParams
from support.hf_reference import random_prompts

ModelDir = Callable[[str], Path]

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(n=4, seed=5, max_tokens=24, ignore_eos=True)
PROMPTS = random_prompts(33, 41, 37, 3)
FAMILIES = [
    "qwen3_5", "qwen3_next", "qwen3_5_moe", "lfm2", "falcon_h1", "mamba2", "nemotron_h",
    "granite_hybrid_dense", "bamba",
]  # fmt: skip
GPU = {"device": "cuda", "gpu_memory_utilization": 0.3, "block_size": 4}


def engine(directory: Path, **options: Any) -> LLM:
    return LLM(directory, max_model_len=128, max_num_seqs=16, **options)


def tokens(llm: LLM, params: SamplingParams) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    return [list(one.token_ids) for output in outputs for one in output.outputs]


@pytest.fixture(autouse=True)
def exact_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_in_float32_are_the_cpus(family: str, model_dir: ModelDir) -> None:
    """In chunks of 50 tokens; then from snapshots."""
    directory = model_dir(family)
    on_cpu = tokens(engine(directory, dtype="float32", device="cpu", block_size=4), GREEDY)
    llm = engine(directory, dtype="float32", max_num_batched_tokens=50, **GPU)
    assert tokens(llm, GREEDY) == on_cpu
    again = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [list(one.outputs[0].token_ids) for one in again] == on_cpu
    assert sum(one.metrics.cached_tokens for one in again) > 50


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen3_5", "falcon_h1"])
def test_replayed_and_launched_steps_agree(family: str, dtype: str, model_dir: ModelDir) -> None:
    options: dict[str, Any] = {"dtype": dtype, **GPU}
    replayed = tokens(engine(model_dir(family), **options), SAMPLED)
    assert tokens(engine(model_dir(family), enforce_eager=True, **options), SAMPLED) == replayed


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("mode", ["swap", "recompute", "auto"])
def test_preemption_does_not_change_tokens(
    mode: str, asynchronous: bool, model_dir: ModelDir
) -> None:
    directory, options = model_dir("qwen3_5"), {"dtype": "float32", **GPU}
    roomy = tokens(engine(directory, **options), SAMPLED)
    small = engine(
        directory,
        kv_cache_memory_bytes=200_000,
        preemption_mode=mode,
        swap_space=0.0 if mode == "recompute" else 0.01,
        async_scheduling=asynchronous,
        **options,
    )
    outputs = small.generate(PROMPTS, SAMPLED, use_tqdm=False)
    assert [list(one.token_ids) for output in outputs for one in output.outputs] == roomy
    assert sum(output.metrics.num_preemptions for output in outputs) > 0


def test_drafts_do_not_change_tokens(model_dir: ModelDir) -> None:
    directory, options = model_dir("qwen3_5"), {"dtype": "float32", **GPU}
    expected = tokens(engine(directory, **options), GREEDY)
    drafted = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}
    assert tokens(engine(directory, **drafted, **options), GREEDY) == expected
