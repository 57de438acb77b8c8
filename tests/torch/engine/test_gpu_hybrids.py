"""Models whose layers keep states, in an engine put together as on a GPU and interpreted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.engine.assembly import engine as assembly
from support.drafting import Drafting, knowing
from support.gpu_kernels import INTERPRETED, TRITON
from support.hf_reference import random_prompts
from support.interpreted import BLOCK_SIZE, Interpreted
from support.small_models import VOCAB_SIZE

pytestmark = pytest.mark.skipif(not (TRITON and INTERPRETED), reason="for Triton's interpreter")

ModelDir = Callable[[str], Path]
GREEDY = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)


def engine(directory: Path, **options: Any) -> LLM:
    sizes = {"max_model_len": 32, "max_num_seqs": 6, "block_size": BLOCK_SIZE}
    return LLM(directory, dtype="float32", **sizes, **options)


def tokens(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    found = llm.generate(prompts, params, use_tqdm=False)
    return [list(one.token_ids) for output in found for one in output.outputs]


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(assembly, "_choose_runtime", lambda config: Interpreted())


def test_tokens_are_those_of_the_cpu_engine(
    model_dir: ModelDir, on_gpu: Callable[[], None]
) -> None:
    """In chunks, beside each other, running ahead; then from snapshots."""
    first, second = random_prompts(13, 5)
    prompts = [first, second, [*first[:12], 7, 8]]
    expected = [tokens(engine(model_dir("qwen3_5")), [one], GREEDY)[0] for one in prompts]
    on_gpu()
    llm = engine(model_dir("qwen3_5"), max_num_batched_tokens=9)
    assert tokens(llm, prompts[:2], GREEDY) == expected[:2]
    found = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [list(one.outputs[0].token_ids) for one in found] == expected
    assert found[0].metrics.cached_tokens == found[2].metrics.cached_tokens == 12


def test_preemption_does_not_change_tokens(model_dir: ModelDir, on_gpu: Callable[[], None]) -> None:
    """Nor do forks: their states are copied, and those of who gives way are swapped."""
    directory, prompts = model_dir("qwen3_5"), random_prompts(9, 6)
    params = SamplingParams(n=2, seed=3, max_tokens=6, ignore_eos=True)
    expected = tokens(engine(directory), prompts, params)
    on_gpu()
    llm = engine(
        directory,
        kv_cache_memory_bytes=40_000,
        preemption_mode="swap",
        swap_space=0.001,
    )
    found = llm.generate(prompts, params, use_tqdm=False)
    assert [list(one.token_ids) for output in found for one in output.outputs] == expected
    assert sum(one.metrics.num_swaps for one in found) > 0


def test_drafts_do_not_change_tokens(model_dir: ModelDir, on_gpu: Callable[[], None]) -> None:
    directory, prompts = model_dir("qwen3_5"), random_prompts(9, 6)
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    expected = tokens(engine(directory), prompts, params)
    on_gpu()
    drafted = {"speculative_config": {"num_speculative_tokens": 3}}
    llm = engine(directory, async_scheduling=False, **drafted)
    llm.engine.use(llm.engine.capabilities._replace(speculation=None))  # nobody else drafts
    truth = {str(number): [text] for number, text in enumerate(expected)}
    drafting = Drafting(llm.engine.scheduler, knowing(truth, 0.6, VOCAB_SIZE))
    assert tokens(llm, prompts, params) == expected
    assert drafting.num_drafts > 3
