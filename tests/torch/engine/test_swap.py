"""Preempted by swap, by recompute or by whichever costs less: the tokens stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError, ModelError
from quire.core.protocol import Verdict
from quire.engine.outputs import RequestOutput
from quire.execution.kv.swap_file import SwapFile
from support.hf_reference import random_prompts

ModelDir = Callable[[str], Path]

BLOCK_SIZE = 4
SAMPLES = SamplingParams(n=4, seed=5, max_tokens=24, ignore_eos=True)
BEAMS = SamplingParams(use_beam_search=True, n=4, max_tokens=24, ignore_eos=True)
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


def texts(outputs: Sequence[RequestOutput]) -> list[list[list[int]]]:
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def make_llm(directory: Path, blocks: int, **options: Any) -> LLM:
    kv_dtype = options.get("kv_cache_dtype", "auto")
    roomy = LLM(
        directory,
        block_size=BLOCK_SIZE,
        max_model_len=128,
        max_num_seqs=64,
        kv_cache_dtype=kv_dtype,
    )
    block_bytes = roomy.capacity.kv_bytes_per_token * BLOCK_SIZE
    return LLM(
        directory,
        block_size=BLOCK_SIZE,
        max_model_len=128,
        max_num_seqs=64,
        kv_cache_memory_bytes=blocks * block_bytes,
        **options,
    )


@pytest.mark.parametrize("kv_dtype", ["int8", "int4"])
def test_rounded_blocks_keep_their_scales(kv_dtype: str, model_dir: ModelDir) -> None:
    """Copied on write, swapped out and back."""
    directory, prompts = model_dir("llama"), random_prompts(33, 41, 37)
    roomy = make_llm(directory, 200, kv_cache_dtype=kv_dtype)
    exact = LLM(directory).capacity.kv_bytes_per_token
    assert roomy.capacity.kv_bytes_per_token < exact
    wanted = roomy.generate(prompts, SAMPLES, use_tqdm=False)
    llm = make_llm(directory, 50, kv_cache_dtype=kv_dtype, preemption_mode="swap", swap_space=0.01)
    got = llm.generate(prompts, SAMPLES, use_tqdm=False)
    assert texts(got) == texts(wanted)
    assert sum(output.metrics.num_swaps for output in got) > 0


@pytest.mark.parametrize("mode", ["swap", "recompute", "auto"])
@pytest.mark.parametrize("params", [SAMPLES, BEAMS, GREEDY], ids=["samples", "beams", "greedy"])
def test_tokens_do_not_depend_on_preemption(
    mode: str, params: SamplingParams, model_dir: ModelDir
) -> None:
    directory, prompts = model_dir("llama"), random_prompts(33, 41, 37)
    wanted = make_llm(directory, 200).generate(prompts, params, use_tqdm=False)
    space = 0.0 if mode == "recompute" else 0.01
    llm = make_llm(directory, 50, preemption_mode=mode, swap_space=space)
    got = llm.generate(prompts, params, use_tqdm=False)
    assert texts(got) == texts(wanted)
    swaps = sum(output.metrics.num_swaps for output in got)
    recomputes = sum(output.metrics.num_recomputes for output in got)
    assert swaps + recomputes > 0
    if mode != "auto":
        assert (recomputes if mode == "swap" else swaps) == 0
    assert (sum(output.metrics.swapped_bytes for output in got) > 0) == (swaps > 0)
    usage = llm.engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity


def test_auto_tells_both_costs(model_dir: ModelDir) -> None:
    llm = make_llm(model_dir("llama"), 50, swap_space=0.01)
    llm.generate(random_prompts(33, 41, 37), GREEDY, use_tqdm=False)
    (first, *_) = [d for d in llm.engine.decisions() if d.what.preempts]
    assert first.swap_seconds and first.recompute_seconds
    cheaper = Verdict.SWAP if first.swap_seconds < first.recompute_seconds else Verdict.RECOMPUTE
    assert first.what is cheaper
    assert "kv_cache_memory_bytes" in str(first) and "ms" in str(first)


@pytest.mark.parametrize("broken", ["write", "read"])
def test_a_failing_disk_costs_the_swap_not_the_sequence(
    broken: str, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, prompts = model_dir("llama"), random_prompts(33, 41, 37)
    wanted = make_llm(directory, 200).generate(prompts, GREEDY, use_tqdm=False)

    def fail(*_: Any) -> None:
        raise OSError("disk gone")

    monkeypatch.setattr(SwapFile, broken, fail)
    llm = make_llm(directory, 50, preemption_mode="swap", swap_space=0.01)
    got = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert texts(got) == texts(wanted)
    assert sum(output.metrics.num_swaps for output in got) > 0


def test_a_full_swap_space_leaves_recomputing(model_dir: ModelDir) -> None:
    directory, prompts = model_dir("llama"), random_prompts(33, 41, 37)
    wanted = make_llm(directory, 200).generate(prompts, GREEDY, use_tqdm=False)
    block_gib = make_llm(directory, 50).capacity.kv_bytes_per_token * BLOCK_SIZE / 2**30
    llm = make_llm(directory, 50, preemption_mode="swap", swap_space=2 * block_gib)
    got = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert texts(got) == texts(wanted)
    assert sum(output.metrics.num_recomputes for output in got) > 0
    assert any("swap space is full" in d.why for d in llm.engine.decisions())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preemption_mode": "swap"}, "needs a swap_space"),
        ({"preemption_mode": "recompute", "swap_space": 1}, "swap_space does nothing"),
        ({"revision": "main"}, "revision needs a Hugging Face name"),
        ({"swap_path": "/tmp"}, "swap_path needs"),
        ({"swap_space": 1e-9}, "at least one block"),
        ({"swap_space": -1}, "swap_space must be"),
        ({"swap_space": 1, "swap_path": "/missing"}, "swap_path: /missing"),
        ({"preemption_mode": "never"}, "preemption_mode must be one of"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy must be one of"),
    ],
)
def test_contradictory_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, ModelError), match=message):
        LLM(kv_cache_memory_bytes="8MiB", **options)
