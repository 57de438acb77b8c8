"""The engine writes what ``transformers`` writes, whatever memory and batching do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.engine.outputs import RequestOutput
from support.hf_reference import hf_greedy, random_prompts
from support.small_models import FAMILIES

ModelDir = Callable[[str], Path]

LENGTHS = (1, 9, 20, 41)
NEW_TOKENS = 64
BLOCK_SIZE = 4
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
STRETCHING = ("dynamic",)  # its keys depend on the prompt's length


def run(llm: LLM, prompts: list[list[int]]) -> list[RequestOutput]:
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    usage = llm.engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity, "leaked blocks"
    return outputs


def texts(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(
    params=[
        *FAMILIES,
        "gemma3",
        "gemma3n",
        "gemma4",
        "cohere2",
        "llama4",
        "glm_moe_dsa",
    ]
)
def family(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_greedy_tokens_do_not_depend_on_memory(family: str, model_dir: ModelDir) -> None:
    directory, prompts = model_dir(family), random_prompts(*LENGTHS)
    expected = [hf_greedy(directory, prompt, NEW_TOKENS) for prompt in prompts]

    roomy = LLM(directory, block_size=BLOCK_SIZE, max_model_len=128)
    assert texts(run(roomy, prompts)) == expected, "batched"
    assert [texts(run(roomy, [prompt]))[0] for prompt in prompts] == expected, "alone"
    again = run(roomy, prompts)
    assert texts(again) == expected, "with a prefix hit"
    cached = [output.metrics.cached_tokens for output in again]
    hits = [min(n // BLOCK_SIZE * BLOCK_SIZE, n - 1) for n in LENGTHS]
    assert cached == ([0] * len(LENGTHS) if family in STRETCHING else hits)

    chunked = LLM(directory, block_size=BLOCK_SIZE, max_model_len=128, max_num_batched_tokens=7)
    assert texts(run(chunked, prompts)) == expected, "in chunks of 7"

    block_bytes = roomy.capacity.kv_bytes_per_token * BLOCK_SIZE
    tight = LLM(
        directory,
        block_size=BLOCK_SIZE,
        max_model_len=128,
        kv_cache_memory_bytes=40 * block_bytes,
    )
    outputs = run(tight, prompts)
    assert texts(outputs) == expected, "through preemption"
    if family not in ("mistral", "gemma3n"):  # whose windows fit
        assert sum(output.metrics.num_preemptions for output in outputs) > 0
    assert max(output.metrics.peak_blocks for output in outputs) <= tight.capacity.num_blocks


def test_samples_share_their_prompt_and_survive_preemption(model_dir: ModelDir) -> None:
    directory, prompts = model_dir("llama"), random_prompts(33, 40)
    params = SamplingParams(n=3, seed=5, max_tokens=40, ignore_eos=True)
    roomy = LLM(directory, block_size=BLOCK_SIZE, max_model_len=128)
    wanted = roomy.generate(prompts, params, use_tqdm=False)
    assert len({tuple(c.token_ids) for c in wanted[0].outputs}) == 3
    # 32 prompt tokens are shared; alone each would hold 18 blocks (33 + 39 tokens).
    assert wanted[0].metrics.peak_blocks == 8 + 3 * 10

    block_bytes = roomy.capacity.kv_bytes_per_token * BLOCK_SIZE
    tight = LLM(
        directory,
        block_size=BLOCK_SIZE,
        max_model_len=128,
        kv_cache_memory_bytes=44 * block_bytes,
    )
    got = tight.generate(prompts, params, use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in got) > 0
    for a, b in zip(wanted, got, strict=True):
        assert [c.token_ids for c in a.outputs] == [c.token_ids for c in b.outputs]


def test_a_seeded_request_does_not_depend_on_its_batch(model_dir: ModelDir) -> None:
    llm = LLM(model_dir("llama"), max_model_len=128)
    prompts = random_prompts(5, 6, 7, 8)
    params = [SamplingParams(seed=i, max_tokens=30, ignore_eos=True, top_p=0.95) for i in range(4)]
    together = llm.generate(prompts, params, use_tqdm=False)
    alone = [llm.generate(p, s, use_tqdm=False)[0] for p, s in zip(prompts, params, strict=True)]
    assert texts(together) == texts(alone)


def test_prompt_logprobs_are_the_models_own(model_dir: ModelDir) -> None:
    import torch

    from support.hf_reference import hf_logits

    directory, prompt = model_dir("llama"), random_prompts(23)[0]
    llm = LLM(directory, block_size=BLOCK_SIZE, max_model_len=128, max_num_batched_tokens=7)
    params = SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=2, logprobs=2)
    expected = torch.log_softmax(hf_logits(directory, prompt), dim=-1)
    for _ in range(2):  # the second time the prompt is in the prefix cache
        output = llm.generate(prompt, params, use_tqdm=False)[0]
        assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
        assert len(output.prompt_logprobs) == len(prompt)
        for position in range(1, len(prompt)):
            table = output.prompt_logprobs[position]
            assert table is not None and next(iter(table)) == prompt[position]
            for token, entry in table.items():
                row = expected[position - 1]
                assert entry.logprob == pytest.approx(float(row[token]), abs=1e-4)
                assert entry.rank == int((row > row[token]).sum()) + 1
        first = output.outputs[0].logprobs
        assert first is not None
        assert first[0][output.outputs[0].token_ids[0]].rank == 1
