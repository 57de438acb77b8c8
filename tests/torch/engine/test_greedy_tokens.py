"""Models of whatever layers, in an engine: transformers' tokens, found prefixes or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quire import LLM, SamplingParams
from support.hf_reference import hf_greedy, random_prompts

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
FAMILIES = (
    "qwen3_5", "lfm2", "lfm3-mixed", "falcon_h1", "nemotron_h_moe", "mamba2", "deepseek_v3",
    "deepseek_v32", "mimo_v2_flash",
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens(family: str, model_dir: Callable[[str], Path]) -> None:
    directory = model_dir(family)
    llm = LLM(
        model=str(directory),
        kv_cache_memory_bytes=64 * 2**20,
        max_num_batched_tokens=16,
        block_size=4,
    )
    texts = random_prompts(3, 25, 40)
    texts.append([*texts[2][:30], 7, 8, 9])
    expected = [hf_greedy(directory, text, 20) for text in texts]
    prompts = [{"prompt_token_ids": text} for text in texts]
    for found_before in (False, True):
        found = llm.generate(prompts, GREEDY)
        assert [list(one.outputs[0].token_ids) for one in found] == expected
        assert (found[2].num_cached_tokens > 30) == found_before
