"""Attention sinks and a rolling window, against StreamingLLM written token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError
from quire.engine.outputs import RequestOutput
from support.hf_reference import random_prompts
from support.streaming_reference import StreamingReference

ModelDir = Callable[[str], Path]

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


def make_llm(directory: Path, window: int, sinks: int, **options: Any) -> LLM:
    given = {"block_size": 4, "max_num_seqs": 16, "max_num_batched_tokens": 16, **options}
    return LLM(directory, window=window, attention_sinks=sinks, **given)


def texts(outputs: Sequence[RequestOutput]) -> list[list[list[int]]]:
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def check_nothing_leaked(llm: LLM) -> None:
    usage = llm.engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity


@pytest.mark.parametrize("family", ["llama", "llama3", "linear", "yarn", "qwen2", "qwen3"])
def test_every_family_streams(family: str, model_dir: ModelDir) -> None:
    prompts = random_prompts(1, 30, 90)
    llm = make_llm(model_dir(family), 12, 4)
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    wanted = [[StreamingReference(model_dir(family), 12, 4).greedy(p, 40)] for p in prompts]
    assert texts(outputs) == wanted
    check_nothing_leaked(llm)


def test_longrope_is_chosen_by_the_positions_that_are_told_apart(model_dir: ModelDir) -> None:
    """Not by the length of texts, which has no end. Its original length is 32."""
    directory, (prompt,) = model_dir("longrope"), random_prompts(9)
    params = SamplingParams(temperature=0.0, max_tokens=18, ignore_eos=True)
    llms = [LLM(directory, max_model_len=length) for length in (32, 256)]
    short, long = (texts(llm.generate([prompt], params, use_tqdm=False)) for llm in llms)
    assert short != long
    for window, expected in ((28, short), (40, long)):
        streamed = make_llm(directory, window, 4).generate([prompt], params, use_tqdm=False)
        assert texts(streamed) == expected


@pytest.mark.parametrize(
    ("window", "sinks", "block_size", "chunk"),
    [(8, 0, 4, 16), (8, 4, 4, 5), (12, 3, 4, 64), (7, 5, 2, 1), (16, 1, 8, 7), (5, 9, 4, 9)],
)
def test_logits_do_not_depend_on_blocks_or_chunks(
    window: int, sinks: int, block_size: int, chunk: int, model_dir: ModelDir
) -> None:
    directory, (prompt,) = model_dir("llama"), random_prompts(100)
    llm = make_llm(directory, window, sinks, block_size=block_size, max_num_batched_tokens=chunk)
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, prompt_logprobs=0)
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    reference = StreamingReference(directory, window, sinks)
    wanted = reference.feed(prompt).log_softmax(-1)
    got = [table[token].logprob for table, token in zip(
        output.prompt_logprobs[1:], prompt[1:], strict=True
    )]  # fmt: skip
    chosen = wanted[torch.arange(99), torch.tensor(prompt[1:])]
    torch.testing.assert_close(torch.tensor(got), chosen, rtol=1e-4, atol=1e-4)
    reference = StreamingReference(directory, window, sinks)
    assert output.outputs[0].token_ids == reference.greedy(prompt, 30)


def test_a_sequence_outgrows_model_and_pool(model_dir: ModelDir) -> None:
    """Twice the model's 256 positions, in ten blocks of four."""
    directory, (prompt,) = model_dir("llama"), random_prompts(200)
    block_bytes = make_llm(directory, 16, 4).capacity.kv_bytes_per_token * 4
    llm = make_llm(directory, 16, 4, kv_cache_memory_bytes=10 * block_bytes)
    assert llm.capacity.max_model_len is None
    assert "first 4 and the last 16 tokens" in llm.capacity.describe()
    assert "of any length" in llm.capacity.describe()
    params = SamplingParams(temperature=0.0, max_tokens=312, ignore_eos=True)
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    assert output.outputs[0].token_ids == StreamingReference(directory, 16, 4).greedy(prompt, 312)
    assert output.metrics.peak_blocks <= 10
    check_nothing_leaked(llm)


def test_without_a_limit_an_answer_is_as_long_as_the_model(model_dir: ModelDir) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    (prompt,) = random_prompts(20)
    (output,) = make_llm(model_dir("llama"), 16, 4).generate([prompt], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 256
    bounded = make_llm(model_dir("llama"), 16, 4, max_model_len=300)
    (output,) = bounded.generate([prompt], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 280


def test_prefixes_are_found_with_their_sinks(model_dir: ModelDir) -> None:
    directory, (prompt, tail) = model_dir("llama"), random_prompts(61, 9)
    llm = make_llm(directory, 12, 6)
    alike = [prompt, [*prompt, *tail], prompt[:41]]
    first = llm.generate(prompt, GREEDY, use_tqdm=False)
    again = llm.generate(alike, GREEDY, use_tqdm=False)
    assert [output.metrics.cached_tokens for output in again] == [60, 60, 40]
    assert texts(again)[0] == texts(first)[0]
    for output, tokens in zip(again, alike, strict=True):
        assert output.outputs[0].token_ids == StreamingReference(directory, 12, 6).greedy(
            tokens, 40
        )


@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("kind", ["greedy", "samples", "beams"])
def test_branches_survive_preemption(mode: str, kind: str, model_dir: ModelDir) -> None:
    directory, prompts = model_dir("llama"), random_prompts(12, 17, 14, 12, 15, 16)
    params = {
        "greedy": replace(GREEDY, max_tokens=60),
        "samples": SamplingParams(n=4, seed=5, max_tokens=60, ignore_eos=True),
        "beams": SamplingParams(n=4, use_beam_search=True, max_tokens=60, ignore_eos=True),
    }[kind]
    roomy = make_llm(directory, 40, 5, max_num_seqs=24)
    wanted = roomy.generate(prompts, params, use_tqdm=False)
    blocks = {"greedy": 24, "samples": 60, "beams": 60}[kind]
    tight = make_llm(
        directory,
        40,
        5,
        max_num_seqs=24,
        kv_cache_memory_bytes=blocks * roomy.capacity.kv_bytes_per_token * 4,
        preemption_mode=mode,
        swap_space=0.0 if mode == "recompute" else 0.01,
    )
    got = tight.generate(prompts, params, use_tqdm=False)
    assert texts(got) == texts(wanted)
    swaps = sum(output.metrics.num_swaps for output in got)
    recomputes = sum(output.metrics.num_recomputes for output in got)
    assert (swaps if mode == "swap" else recomputes) > 0
    if kind == "greedy":
        for output, prompt in zip(got, prompts, strict=True):
            reference = StreamingReference(directory, 40, 5)
            assert output.outputs[0].token_ids == reference.greedy(prompt, 60)
    check_nothing_leaked(tight)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("opt", {"window": 16}, "rotary positions"),
        ("gpt2", {"window": 16}, "GPT2LMHeadModel is none"),
        ("gemma2", {"window": 16}, "sliding windows of its own"),
        ("mistral", {"window": 16}, "sliding windows of its own"),
        ("dynamic", {"window": 16}, r"\(dynamic\) change with the length"),
        ("llama", {"window": 250, "attention_sinks": 7}, "is 257; this model allows at most 256"),
        ("llama", {"window": 3}, "at least block_size, 4"),
        ("llama", {"window": 0}, "window must be an integer of at least 1"),
        ("llama", {"attention_sinks": 4}, "needs a window"),
        ("llama", {"window": 16, "attention_sinks": -1}, "attention_sinks must be"),
        ("llama", {"window": 200, "kv_cache_memory_bytes": "64KiB"}, "need a KV pool"),
    ],
)
def test_what_cannot_stream_is_refused(
    family: str, options: dict[str, Any], message: str, model_dir: ModelDir
) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(model_dir(family), block_size=4, **options)
