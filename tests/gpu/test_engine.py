"""The engine on a GPU: the CPU's tokens, replayed or launched anew, within its memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError
from quire.core.protocol import PendingStep, Step
from quire.execution.batch import pack
from quire.execution.executor import ModelExecutor
from support.hf_reference import random_prompts

ModelDir = Callable[[str], Path]

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(n=4, seed=5, max_tokens=24, ignore_eos=True)
PROMPTS = random_prompts(33, 41, 37, 3)


def tokens(directory: Path, params: SamplingParams, **options: Any) -> list[list[int]]:
    llm = LLM(directory, max_model_len=128, max_num_seqs=16, **options)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    return [list(one.token_ids) for output in outputs for one in output.outputs]


@pytest.fixture(autouse=True)
def exact_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


DENSE = ["llama", "qwen2_window", "qwen3", "longrope", "opt", "gpt2"]
MIXTURES = ["qwen2_moe", "qwen3_moe", "mixtral", "gpt_oss", "granite_moe"]


@pytest.mark.parametrize("family", [*DENSE, *MIXTURES])
def test_greedy_tokens_in_float32_are_the_cpus(family: str, model_dir: ModelDir) -> None:
    directory, options = model_dir(family), {"dtype": "float32", "block_size": 4}
    on_cpu = tokens(directory, GREEDY, device="cpu", **options)
    on_gpu = tokens(directory, GREEDY, device="cuda", gpu_memory_utilization=0.3, **options)
    assert on_gpu == on_cpu


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_replayed_and_launched_steps_agree(family: str, dtype: str, model_dir: ModelDir) -> None:
    directory = model_dir(family)
    options = {"dtype": dtype, "device": "cuda", "gpu_memory_utilization": 0.3}
    replayed = tokens(directory, SAMPLED, **options)
    assert tokens(directory, SAMPLED, enforce_eager=True, **options) == replayed


@pytest.mark.parametrize("family", ["llama", "qwen2_moe"])
def test_the_states_of_replayed_and_launched_steps_agree_bit_for_bit(
    family: str, model_dir: ModelDir
) -> None:
    from quire.execution.gpu.assembly import OnGPU
    from quire.models.loader import load_model
    from support.chunks import decode_chunks
    from support.limits import make_limits

    device = torch.device("cuda", 0)
    model = load_model(model_dir(family), "bfloat16", device=device)
    limits = make_limits(
        64, 256, windows=(None, None), block_size=4, max_num_seqs=8, max_num_batched_tokens=64
    )
    found = []
    for eager in (False, True):
        placement = OnGPU(device, 0.3, enforce_eager=eager)
        with placement.start_up_lock():
            placement.executor(model, limits, model.dtype)
        with torch.inference_mode():
            batches = [pack(chunks, 4, range(len(chunks))) for chunks in decode_chunks()]
            found.append(
                [
                    placement.parts.forward(batch, lambda: torch.zeros(0)).asked.clone()
                    for batch in batches
                ]
            )
    for replayed, launched in zip(*found, strict=True):
        assert torch.equal(replayed, launched)


ASKED = [
    SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=2),
    SamplingParams(seed=5, max_tokens=36, ignore_eos=True),
    SamplingParams(seed=6, top_k=20, top_p=0.9, max_tokens=38, ignore_eos=True),
    SamplingParams(seed=7, presence_penalty=1.0, max_tokens=34, ignore_eos=True),
]


@pytest.mark.parametrize("enforce_eager", [False, True])
@pytest.mark.parametrize("blocks", [40, 400])
def test_running_ahead_does_not_change_tokens(
    blocks: int, enforce_eager: bool, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, ahead = ModelExecutor.submit, []

    def note(executor: ModelExecutor, step: Step) -> PendingStep:
        ahead.append(step.ahead)
        return submit(executor, step)

    monkeypatch.setattr(ModelExecutor, "submit", note)
    found = []
    for asynchronous in (False, True):
        llm = LLM(
            model_dir("llama"),
            max_model_len=128,
            max_num_seqs=16,
            dtype="float32",
            device="cuda",
            gpu_memory_utilization=0.3,
            block_size=4,
            kv_cache_memory_bytes=blocks * 4 * 1024,
            enforce_eager=enforce_eager,
            async_scheduling=asynchronous,
        )
        outputs = llm.generate(PROMPTS, ASKED, use_tqdm=False)
        found.append([list(output.outputs[0].token_ids) for output in outputs])
        assert any(ahead) is asynchronous
    assert found[0] == found[1]


def test_a_step_of_plain_samples_is_submitted_without_waiting(model_dir: ModelDir) -> None:
    llm = LLM(model_dir("llama"), max_model_len=128, device="cuda", gpu_memory_utilization=0.3)
    filtered = SamplingParams(seed=6, top_k=20, top_p=0.9, max_tokens=40, ignore_eos=True)
    drawn = SamplingParams(seed=5, max_tokens=40, ignore_eos=True, logprobs=1)
    plain = [GREEDY, drawn, filtered, drawn]
    for name, (prompt, params) in enumerate(zip(PROMPTS, plain, strict=True)):
        llm.engine.add_request(str(name), prompt, params)
    for _ in range(10):
        llm.engine.step()
    executor = llm.engine.executor
    assert isinstance(executor, ModelExecutor)
    submit = executor.submit

    def without_waiting(step: Step) -> PendingStep:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return submit(step)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    executor.submit = without_waiting  # type: ignore[method-assign]
    for _ in range(10):
        assert not any(delta.finish_reason == "error" for delta in llm.engine.step())


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_drafts_from_texts_do_not_change_tokens(method: str, model_dir: ModelDir) -> None:
    options = {"dtype": "float32", "device": "cuda", "gpu_memory_utilization": 0.3}
    plain = tokens(model_dir("llama"), GREEDY, **options)
    drafts = {"method": method, "num_speculative_tokens": 5}
    assert tokens(model_dir("llama"), GREEDY, speculative_config=drafts, **options) == plain


@pytest.mark.parametrize("mode", ["swap", "recompute", "auto"])
def test_preemption_does_not_change_tokens(mode: str, model_dir: ModelDir) -> None:
    directory = model_dir("llama")
    options = {"dtype": "float32", "device": "cuda", "gpu_memory_utilization": 0.3, "block_size": 4}
    roomy = tokens(directory, SAMPLED, **options)
    space = 0.0 if mode == "recompute" else 0.01
    small = tokens(
        directory,
        SAMPLED,
        kv_cache_memory_bytes=50 * 4 * 1024,
        preemption_mode=mode,
        swap_space=space,
        **options,
    )
    assert small == roomy


def test_an_engine_starts_where_another_has_become_garbage(model_dir: ModelDir) -> None:
    thresholds = gc.get_threshold()
    gc.disable()
    try:
        first = tokens(model_dir("llama"), GREEDY, device="cuda", gpu_memory_utilization=0.6)
        gc.set_threshold(1)  # collects as often as can be, in recordings too
        gc.enable()
        again = tokens(model_dir("llama"), GREEDY, device="cuda", gpu_memory_utilization=0.6)
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    assert again == first


def test_the_pool_keeps_to_its_share(model_dir: ModelDir) -> None:
    gc.collect()
    torch.cuda.empty_cache()  # or the pool would be taken from what earlier tests have left
    free, total = torch.cuda.mem_get_info()
    llm = LLM(model_dir("llama"), device="cuda", gpu_memory_utilization=0.25, max_num_seqs=2000)
    taken = free - torch.cuda.mem_get_info()[0]
    assert llm.capacity.pool_bytes <= taken <= 0.27 * total
    with pytest.raises(ConfigError, match="gpu_memory_utilization"):
        LLM(model_dir("llama"), device="cuda", gpu_memory_utilization=1.0)


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
def test_a_quantised_cache_is_smaller_and_gives_nearly_the_same(
    kv_cache_dtype: str, model_dir: ModelDir
) -> None:
    options = {"dtype": "float32", "device": "cuda", "gpu_memory_utilization": 0.3}
    exact = tokens(model_dir("llama"), GREEDY, **options)
    found = tokens(model_dir("llama"), GREEDY, kv_cache_dtype=kv_cache_dtype, **options)
    assert [one[0] for one in found] == [one[0] for one in exact]
