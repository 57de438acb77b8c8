"""Beam search gives what ``transformers`` gives, and shares its blocks while it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, SamplingParams
from support.hf_reference import hf_model, random_prompts
from support.small_models import EOS_TOKEN_ID

ModelDir = Callable[[str], Path]

LENGTHS = (3, 12, 21)
NEW_TOKENS = 24
BLOCK_SIZE = 4
VARIANTS: list[dict[str, Any]] = [
    {},
    {"length_penalty": 0.0},
    {"length_penalty": 2.0, "early_stopping": True},
    {"length_penalty": -1.0, "early_stopping": "never"},
    {"length_penalty": 1.5, "early_stopping": "never"},
    {"repetition_penalty": 1.3},
]


def hf_beams(directory: Path, prompt: list[int], width: int, **options: Any) -> list[list[int]]:
    model = hf_model(directory)
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=[EOS_TOKEN_ID, 40, 41, 42],  # so that beams end at different lengths
            pad_token_id=2,
            **options,
        )
    texts = []
    for row in output[:, len(prompt) :].tolist():
        ends = [i for i, token in enumerate(row) if token in (EOS_TOKEN_ID, 40, 41, 42)]
        texts.append(row[: ends[0] + 1] if ends else row)
    return texts


def beams(width: int, **options: Any) -> SamplingParams:
    return SamplingParams(
        use_beam_search=True,
        n=width,
        max_tokens=NEW_TOKENS,
        stop_token_ids=[40, 41, 42],
        **options,
    )


@pytest.mark.parametrize("family", ["llama", "qwen3", "opt", "gpt2"])
@pytest.mark.parametrize("width", [2, 4, 6])
def test_hypotheses_equal_transformers(family: str, width: int, model_dir: ModelDir) -> None:
    directory, prompts = model_dir(family), random_prompts(*LENGTHS)
    llm = LLM(directory, block_size=BLOCK_SIZE, max_model_len=128)
    outputs = llm.generate(prompts, beams(width), use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert [c.token_ids for c in output.outputs] == hf_beams(directory, prompt, width)
        scores = [c.cumulative_logprob / len(c.token_ids) for c in output.outputs]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_penalties_and_stopping_rules_equal_transformers(
    variant: dict[str, Any], model_dir: ModelDir
) -> None:
    directory, prompts = model_dir("llama"), random_prompts(*LENGTHS)
    llm = LLM(directory, block_size=BLOCK_SIZE, max_model_len=128)
    outputs = llm.generate(prompts, beams(4, **variant), use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = hf_beams(directory, prompt, 4, **variant)
        assert [c.token_ids for c in output.outputs] == expected


def test_beams_share_blocks_and_survive_preemption(model_dir: ModelDir) -> None:
    directory, prompts = model_dir("llama"), random_prompts(40, 41)
    roomy = LLM(directory, block_size=BLOCK_SIZE, max_model_len=128)
    wanted = roomy.generate(prompts, beams(4), use_tqdm=False)
    # Without sharing: 4 beams of 40 + 23 tokens, 16 blocks each.
    assert wanted[0].metrics.peak_blocks < 40
    block_bytes = roomy.capacity.kv_bytes_per_token * BLOCK_SIZE
    tight = LLM(
        directory,
        block_size=BLOCK_SIZE,
        max_model_len=128,
        kv_cache_memory_bytes=36 * block_bytes,
    )
    got = tight.generate(prompts, beams(4), use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in got) > 0
    for a, b in zip(wanted, got, strict=True):
        assert [c.token_ids for c in a.outputs] == [c.token_ids for c in b.outputs]
    usage = tight.engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity


def test_best_of_returns_the_likeliest(model_dir: ModelDir) -> None:
    llm = LLM(model_dir("llama"), max_model_len=128)
    prompt = random_prompts(9)[0]
    common: dict[str, Any] = {"seed": 3, "max_tokens": 12, "ignore_eos": True}
    everyone = llm.generate(prompt, SamplingParams(n=6, logprobs=0, **common), use_tqdm=False)[
        0
    ].outputs
    best = llm.generate(prompt, SamplingParams(n=2, best_of=6, **common), use_tqdm=False)[0].outputs
    ranked = sorted(everyone, key=lambda c: -(c.cumulative_logprob or 0.0))
    assert [c.token_ids for c in best] == [c.token_ids for c in ranked[:2]]
    assert [c.index for c in best] == [0, 1]
    assert best[0].logprobs is None
