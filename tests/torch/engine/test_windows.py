"""Windowed layers in pools that hold their windows but not the texts: the tokens stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.memory import LayeredAllocator
from quire.engine.dashboard import pool_figures
from quire.engine.outputs import RequestOutput
from quire.http.metrics import ServerMetrics
from support.hf_reference import hf_greedy, random_prompts
from support.small_models import SMALL_LLAMA, save_model

ModelDir = Callable[[str], Path]

BLOCK_SIZE = 4
LENGTHS = (1, 9, 20, 41, 60)
NEW_TOKENS = 64
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
FULL_BLOCKS = sum(-(-(n + NEW_TOKENS - 1) // BLOCK_SIZE) for n in LENGTHS)
# A window of 12 less one, at any place in blocks of 4, and a new block: 5. A step of 16: 3 more.
SEQUENCE_BLOCKS, STEP_BLOCKS = 5, 3
WINDOW_BLOCKS = len(LENGTHS) * SEQUENCE_BLOCKS + STEP_BLOCKS


def make_llm(directory: Path, **options: Any) -> LLM:
    given = {"max_num_seqs": len(LENGTHS), "max_num_batched_tokens": 16, **options}
    return LLM(directory, block_size=BLOCK_SIZE, max_model_len=128, **given)


def texts(outputs: Sequence[RequestOutput]) -> list[list[list[int]]]:
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def check_nothing_leaked(llm: LLM) -> None:
    usage = llm.engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity


def test_a_pool_of_windows_serves_texts_that_do_not_fit(model_dir: ModelDir) -> None:
    directory, prompts = model_dir("mistral"), random_prompts(*LENGTHS)
    llm = make_llm(directory)
    assert [kv_group.num_blocks for kv_group in llm.capacity.kv_groups] == [WINDOW_BLOCKS]
    assert WINDOW_BLOCKS * 4 <= FULL_BLOCKS
    assert "2 of 2 layers (only the last 12 tokens of a sequence)" in llm.capacity.describe()
    assert f"holds {len(LENGTHS)} sequences of the full 128" in llm.capacity.describe()
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert texts(outputs) == [[hf_greedy(directory, p, NEW_TOKENS)] for p in prompts]
    assert sum(output.metrics.num_preemptions for output in outputs) == 0
    peak = max(output.metrics.peak_blocks for output in outputs)
    assert peak <= SEQUENCE_BLOCKS + STEP_BLOCKS
    check_nothing_leaked(llm)


@pytest.mark.parametrize("family", ["gemma2", "qwen2_window"])
def test_alternating_layers_have_kv_groups_of_their_own(family: str, model_dir: ModelDir) -> None:
    directory, prompts = model_dir(family), random_prompts(*LENGTHS)
    layer_bytes = make_llm(directory).capacity.kv_bytes_per_token * BLOCK_SIZE // 2
    memory = (FULL_BLOCKS + len(LENGTHS) + WINDOW_BLOCKS) * layer_bytes
    assert memory < 0.75 * FULL_BLOCKS * 2 * layer_bytes
    llm = make_llm(directory, kv_cache_memory_bytes=memory)
    full, windowed = llm.capacity.kv_groups
    assert full.window is None and full.share == windowed.share is not None
    assert full.num_blocks == memory // layer_bytes
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert texts(outputs) == [[hf_greedy(directory, p, NEW_TOKENS)] for p in prompts]
    assert sum(output.metrics.num_preemptions for output in outputs) == 0
    again = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert texts(again) == texts(outputs), "with what the prefix cache has left"
    check_nothing_leaked(llm)
    scheduler = llm.engine.scheduler
    pool = pool_figures(scheduler, 128, llm.capacity.kv_layers)
    slots = scheduler.allocator.usage()
    assert sum(one.cached_blocks * one.span for one in pool.kv_groups) * BLOCK_SIZE == slots.cached
    assert [one.first_block for one in pool.kv_groups] == [0, 0]
    assert pool.num_blocks == full.num_blocks == llm.capacity.num_blocks
    exposed = ServerMetrics(llm.engine, "m").exposition().decode()
    assert exposed.count("kv_group_slots{") == 4


@pytest.fixture(scope="module")
def two_sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose layers with a window have half as many numbers in a head as the others."""
    from transformers import Gemma4TextConfig

    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    config = Gemma4TextConfig(
        **{**SMALL_LLAMA, "num_hidden_layers": len(kinds)},
        head_dim=16,
        hidden_size_per_layer_input=0,
        sliding_window=12,
        layer_types=kinds,
        per_layer_config={str(layer): {"head_dim": 32} for layer in (2, 5)},
    )
    return save_model(config, tmp_path_factory.mktemp("two-sizes"))


def test_layers_of_other_sizes_share_one_memory(two_sizes: Path) -> None:
    prompts = random_prompts(9, 41, 60)
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    wanted = [[hf_greedy(two_sizes, prompt, 24)] for prompt in prompts]
    memory = 26 * make_llm(two_sizes).capacity.kv_bytes_per_token * BLOCK_SIZE  # 31 would do
    options = {"swap_space": 0.01, "preemption_mode": "swap"}
    llm = make_llm(two_sizes, kv_cache_memory_bytes=memory, **options)
    assert [one.share and one.share[1:4] for one in llm.capacity.kv_groups] == [
        (1, 1, 0),
        (1, 1, 0),
    ]
    for _ in range(2):  # the second time with what the prefix cache has left
        outputs = llm.generate(prompts, greedy, use_tqdm=False)
        assert texts(outputs) == wanted
        assert sum(output.metrics.num_preemptions for output in outputs) > 0
        check_nothing_leaked(llm)


def test_layers_of_other_sizes_may_have_scales(
    two_sizes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many in all layers, though not as many numbers."""
    prompts = random_prompts(9, 41, 60, 55)
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    memory = 31 * make_llm(two_sizes).capacity.kv_bytes_per_token
    options = {"swap_space": 0.01, "preemption_mode": "swap", "kv_cache_dtype": "int8"}
    llm = make_llm(two_sizes, kv_cache_memory_bytes=memory, **options)
    assert [one.share and one.share[1:4] for one in llm.capacity.kv_groups] == [
        (1, 1, 0),
        (1, 1, 0),
    ]
    monkeypatch.setattr("quire.engine.capacity.pool.shares", lambda *_: [])
    apart = make_llm(two_sizes, kv_cache_dtype="int8")
    assert [one.share for one in apart.capacity.kv_groups] == [None, None]
    wanted = texts(apart.generate(prompts, greedy, use_tqdm=False))
    for _ in range(2):
        outputs = llm.generate(prompts, greedy, use_tqdm=False)
        assert texts(outputs) == wanted
        assert sum(output.metrics.num_preemptions for output in outputs) > 0
        check_nothing_leaked(llm)


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
@pytest.mark.parametrize("mode", ["swap", "recompute", "auto"])
@pytest.mark.parametrize("beams", [False, True])
def test_branches_survive_preemption(
    family: str, mode: str, beams: bool, model_dir: ModelDir
) -> None:
    directory, prompts = model_dir(family), random_prompts(33, 41, 37)
    params = SamplingParams(n=4, seed=5, max_tokens=40, ignore_eos=True, use_beam_search=beams)
    roomy = make_llm(directory, max_num_seqs=64)
    wanted = roomy.generate(prompts, params, use_tqdm=False)
    # Little more than a request of four needs alone.
    blocks = {"mistral": 24, "gemma2": 42}[family]
    memory = blocks * roomy.capacity.kv_bytes_per_token * BLOCK_SIZE
    tight = make_llm(
        directory,
        max_num_seqs=64,
        kv_cache_memory_bytes=memory,
        preemption_mode=mode,
        swap_space=0.0 if mode == "recompute" else 0.01,
    )
    got = tight.generate(prompts, params, use_tqdm=False)
    assert texts(got) == texts(wanted)
    if not (beams and family == "mistral"):  # whose beams share most of their windows
        assert sum(output.metrics.num_preemptions for output in got) > 0
    assert isinstance(tight.engine.scheduler.allocator, LayeredAllocator) == (family == "gemma2")
    check_nothing_leaked(tight)
