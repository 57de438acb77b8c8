"""The paper's baselines run on the same engine and kernels, and give the same texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.engine.outputs import RequestOutput
from support.hf_reference import hf_greedy, random_prompts
from support.regions import engines_under

ModelDir = Callable[[str], Path]

BLOCK_SIZE = 4
SAMPLES = SamplingParams(n=4, seed=5, max_tokens=24, ignore_eos=True)
BEAMS = SamplingParams(use_beam_search=True, n=4, max_tokens=24, ignore_eos=True)
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


def texts(outputs: Sequence[RequestOutput]) -> list[list[list[int]]]:
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def make_llm(directory: Path, blocks: int | None = None, **options: Any) -> LLM:
    common = {"block_size": BLOCK_SIZE, "max_model_len": 128, "max_num_seqs": 64, **options}
    llm = LLM(directory, **common)
    if blocks is None:
        return llm
    size = blocks * llm.capacity.kv_bytes_per_token * BLOCK_SIZE
    return LLM(directory, kv_cache_memory_bytes=size, **common)


@pytest.mark.parametrize("allocator", ["max", "pow2", "oracle"])
@pytest.mark.parametrize("params", [SAMPLES, BEAMS, GREEDY], ids=["samples", "beams", "greedy"])
def test_contiguous_memory_gives_the_same_tokens(
    allocator: str, params: SamplingParams, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, prompts = model_dir("llama"), random_prompts(33, 41, 37)
    wanted = make_llm(directory, 200).generate(prompts, params, use_tqdm=False)
    engines_under(monkeypatch, allocator)
    llm = make_llm(directory, 160)
    got = llm.generate(prompts, params, use_tqdm=False)
    assert texts(got) == texts(wanted)
    assert llm.engine.scheduler.allocator.usage().free == 160 * BLOCK_SIZE
    paged, contiguous = wanted[0].metrics.peak_blocks, got[0].metrics.peak_blocks
    assert contiguous > paged


def test_contiguous_memory_keeps_every_token(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, prompts = model_dir("gemma2"), random_prompts(9, 41)
    engines_under(monkeypatch, "pow2")
    llm = make_llm(directory)
    (kv_group,) = llm.capacity.kv_groups
    assert kv_group.window is None and kv_group.layers == (0, 1)
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert texts(outputs) == [[hf_greedy(directory, p, 40)] for p in prompts]


@pytest.mark.parametrize("allocator", ["max", "pow2"])
def test_a_draft_model_works_over_it(
    allocator: str, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.engine.assembly.draft.check_draft", lambda *_: None)
    directory, prompts = model_dir("llama"), random_prompts(9, 30, 17)
    expected = make_llm(directory).generate(prompts, GREEDY, use_tqdm=False)
    engines_under(monkeypatch, allocator)
    drafts = {"method": "draft", "model": str(directory), "num_speculative_tokens": 4}
    llm = make_llm(directory, speculative_config=drafts)
    assert texts(llm.generate(prompts, GREEDY, use_tqdm=False)) == texts(expected)
    assert llm.engine.stats.num_accepted_tokens > 20
