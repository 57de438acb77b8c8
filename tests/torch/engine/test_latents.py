"""Models that keep a latent of each token, in an engine: transformers' tokens, the law of bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from quire import LLM, SamplingParams
from support.engine_lives import save_latents
from support.hf_reference import hf_greedy, random_prompts
from support.law_of_bits import FORMS, tallies

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def test_greedy_tokens(model_dir: Callable[[str], Path]) -> None:
    directory = model_dir("deepseek_v3")
    llm = LLM(
        model=str(directory),
        kv_cache_memory_bytes=8 * 2**20,
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


@pytest.mark.parametrize("form", ["int8 cache", "adapters"])
def test_a_request_has_the_bits_that_it_has_alone(form: str, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    found = tallies(FORMS[form], save_latents(tmp_path), ("everything",), 5, at_once=5)
    torch.set_num_threads(threads)
    for kind, tally in found.items():
        assert tally.first is None, f"{kind}: {tally.bits} of {tally.requests}; {tally.first}"
