"""Soft cuts on real models: exact against transformers, and the same bits however computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire import LLM, SamplingParams
from quire.core.errors import RequestError
from quire.core.protocol import SoftCut
from quire.engine.assembly import draft
from quire.engine.assembly.engine import _NO_SOFT_CUTS_ON_GPU
from quire.engine.streaming_session import StreamingSession
from support.drafting import Verified
from support.hf_reference import hf_model, random_prompts
from support.streaming_reference import StreamingReference, share_of

ModelDir = Callable[[str], Path]

INPUTS = random_prompts(30, 13, 21, 5)
ASK = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, logprobs=3)
CUTS = [(-1.5, 12), (-math.inf, 20), (-0.7, 0)]
SETTINGS: dict[str, Any] = {"block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 16}

Told = list[tuple[int, float]]  # tokens and their log-probabilities


def say(session: StreamingSession, tokens: list[int]) -> Told:
    session.append(tokens)
    (output,) = session.generate(ASK).outputs
    assert output.logprobs is not None
    return [
        (token, told[token].logprob)
        for token, told in zip(output.token_ids, output.logprobs, strict=True)
    ]


def life(session: StreamingSession, cuts: list[tuple[float, int]] = CUTS) -> Told:
    """Turns with cuts between them."""
    told = say(session, INPUTS[0])
    for (bias, fade), tokens in zip(cuts, INPUTS[1:], strict=True):
        session.soft_cut(bias, fade)
        told += say(session, tokens)
    return told


def mask(length: int, cuts: list[SoftCut], window: int | None) -> Tensor:
    """What is added to scores, [queries, keys], for transformers to add."""
    shares = torch.zeros(length, length, dtype=torch.float64)
    plain = [(cut.position, cut.bias, cut.fade) for cut in cuts]
    for query in range(length):
        oldest = 0 if window is None else max(0, query - window + 1)
        for key in range(oldest, query + 1):
            shares[query, key] = share_of(plain, query, key)
    return shares.log()[None, None]


@pytest.mark.parametrize("family", ["llama", "opt", "gemma2"])
def test_logits_are_those_of_transformers_with_a_mask(family: str, model_dir: ModelDir) -> None:
    directory = model_dir(family)
    llm = LLM(directory, max_model_len=200, **SETTINGS)
    with llm.open_session() as session:
        told = life(session)
        token_ids, cuts = session.token_ids, session.soft_cuts
    assert [(cut.position, cut.bias, cut.fade) for cut in cuts] == [
        (40, *CUTS[0]), (63, *CUTS[1]), (94, *CUTS[2]),
    ]  # fmt: skip
    model = hf_model(directory, torch.float64)
    window = getattr(model.config, "sliding_window", None)
    full, near = (mask(len(token_ids), cuts, size) for size in (None, window))
    masks: dict[str, Any] = {"gemma2": {"full_attention": full, "sliding_attention": near}}
    with torch.inference_mode():
        logits = model(
            torch.tensor([token_ids]),
            attention_mask=masks.get(family, full),
            position_ids=torch.arange(len(token_ids))[None],
            use_cache=False,
        ).logits[0]
    places = [p for end in (40, 63, 94, 109) for p in range(end - 11, end - 1)]
    expected = logits[places].log_softmax(-1)
    assert [token for token, _ in told] == expected.argmax(-1).tolist()
    found = torch.tensor([logprob for _, logprob in told], dtype=torch.float64)
    assert (found - expected.amax(-1)).abs().max() < 1e-4


@pytest.mark.parametrize("sinks", [0, 3])
def test_under_a_window_sinks_keep_their_weight(sinks: int, model_dir: ModelDir) -> None:
    llm = LLM(model_dir("llama"), window=24, attention_sinks=sinks, **SETTINGS)
    reference = StreamingReference(model_dir("llama"), 24, sinks)
    pending: list[int] = []
    with llm.open_session() as session:
        for (bias, fade), tokens in zip([(0.0, 0), *CUTS], INPUTS, strict=True):
            session.soft_cut(bias, fade) if session.token_ids else None
            reference.cuts.append((len(session.token_ids), bias, fade))
            told = [token for token, _ in say(session, tokens)]
            assert told == reference.greedy([*pending, *tokens], 10)
            pending = told[-1:]


WAYS: dict[str, dict[str, Any]] = {
    "one by one": {},
    "found": {},
    "whole": {"max_num_batched_tokens": 256, "block_size": 16},
    "threads": {"max_num_batched_tokens": 7, "threads": 2},
    "recompute": {"preemption_mode": "recompute", "swap_space": 0.0},
    "swap": {"preemption_mode": "swap", "swap_space": 0.01},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
}
FORMS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "kv_cache_dtype": "int8", "window": 40, "attention_sinks": 5},
    "int4": {"dtype": "bfloat16", "kv_cache_dtype": "int4", "window": 40, "attention_sinks": 5},
}


def told_by(directory: Path, form: dict[str, Any], way: str) -> Told:
    """What a session says, that has to give way if ``way`` is of that."""
    settings = {**SETTINGS, "max_model_len": 160, **form, **WAYS[way]}
    tight = way in ("recompute", "swap")
    if tight:
        block_bytes = LLM(directory, **settings).capacity.kv_bytes_per_token * 4
        settings["kv_cache_memory_bytes"] = block_bytes * (18 if "window" in form else 40)
    llm = LLM(directory, **settings)
    if way == "found":
        with llm.open_session() as session:
            life(session)
    with llm.open_session() as session:
        told = life(session)
        llm.generate(INPUTS[2] * 5, ASK, use_tqdm=False)
        session.soft_cut(-0.5, 3)
        told += say(session, [5, 6, 7])
    decisions = [str(decision) for decision in llm.engine.decisions()]
    assert tight == any(f"{way} " in text and "idle while" in text for text in decisions)
    hits = llm.engine.scheduler.stats.prefix_hits
    assert (way == "found") == (hits > 20)
    return told


@pytest.mark.parametrize("form", FORMS)
def test_the_bits_are_those_of_any_other_way(form: str, model_dir: ModelDir) -> None:
    threads = torch.get_num_threads()
    try:
        found = {way: told_by(model_dir("llama"), FORMS[form], way) for way in WAYS}
    finally:
        torch.set_num_threads(threads)
    assert [way for way, told in found.items() if told != found["one by one"]] == []


@pytest.mark.parametrize("drafter", ["llama", "opt"])
def test_a_draft_model_sees_the_cuts_and_changes_no_bit(
    drafter: str, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is its target is always right: what it gives its queries is biased as well."""
    monkeypatch.setattr(draft, "check_draft", lambda *_: None)  # it may be as large
    settings = {**SETTINGS, "max_model_len": 200}
    config = {"method": "draft", "model": str(model_dir(drafter)), "num_speculative_tokens": 5}
    drafted = LLM(model_dir("llama"), **settings, speculative_config=config)
    verified = Verified(drafted)
    alone = LLM(model_dir("llama"), **settings)
    with alone.open_session() as plain, drafted.open_session() as session:
        assert life(session) == life(plain)
    assert verified.drafts > 20
    assert (verified.right == verified.drafts) == (drafter == "llama")


def test_nothing_is_what_a_bias_of_0_changes(model_dir: ModelDir) -> None:
    llm = LLM(model_dir("llama"), dtype="bfloat16", max_model_len=200, **SETTINGS)
    with llm.open_session() as plain, llm.open_session() as cut, llm.open_session() as other:
        told = [token for tokens in INPUTS for token in say(plain, tokens)]
        assert life(cut, [(0.0, 0), (0.0, 9), (0.0, 30)]) == told
        assert cut.soft_cuts == []
        assert life(other) != told


def test_a_recompute_keeps_the_cuts_of_what_it_keeps(model_dir: ModelDir) -> None:
    llm = LLM(model_dir("llama"), dtype="bfloat16", max_model_len=200, **SETTINGS)
    with llm.open_session() as session, llm.open_session() as fresh:
        life(session)
        session.recompute(40)
        assert session.soft_cuts == [SoftCut(0, 25, -0.7, 0)]
        fresh.append(session.token_ids[:25])
        fresh.soft_cut(-0.7)
        fresh.append(session.token_ids[25:])
        assert say(session, [5, 6]) == say(fresh, [5, 6])
        session.hard_cut()
        assert session.soft_cuts == []


def test_on_a_gpu_it_is_refused_by_name(model_dir: ModelDir) -> None:
    llm = LLM(model_dir("llama"), **SETTINGS)
    sessions = llm.engine.sessions
    sessions.rules = replace(sessions.rules, why_no_soft_cuts=_NO_SOFT_CUTS_ON_GPU)
    with llm.open_session() as session:
        session.append([1, 2, 3])
        with pytest.raises(RequestError, match="computed on CPUs only"):
            session.soft_cut(-1.0)
