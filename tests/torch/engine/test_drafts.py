"""Drafts change no token and no log-probability, nor does what the executor forgets."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire.core.protocol import PendingStep, Step
from quire.engine.assembly import draft as assembly
from quire.engine.llm import LLM
from quire.engine.outputs import RequestOutput
from quire.text.params import Reasoning, SamplingParams, StructuredOutputs
from support.drafting import Drafting, Verified, knowing
from support.hf_reference import random_prompts

ModelDir = Callable[[str], Path]

LETTERS = StructuredOutputs(regex="[a-z ]{4,12}")
MARKS = Reasoning("a", "the", open=True)
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=2),
    SamplingParams(seed=3, n=2, max_tokens=16, ignore_eos=True, top_k=40),
    SamplingParams(seed=4, max_tokens=24, ignore_eos=True, repetition_penalty=1.3, logprobs=1),
    SamplingParams(seed=5, n=3, max_tokens=16, presence_penalty=0.7, frequency_penalty=0.4),
    SamplingParams(temperature=0.0, max_tokens=18, min_tokens=9, bad_words=["a", "the"]),
    SamplingParams(seed=6, max_tokens=12, top_p=0.8, prompt_logprobs=1, stop_token_ids=[7, 11]),
    SamplingParams(use_beam_search=True, n=2, max_tokens=8, presence_penalty=0.5),
    SamplingParams(seed=7, n=2, max_tokens=20, structured_outputs=LETTERS, logprobs=1),
    SamplingParams(use_beam_search=True, n=2, max_tokens=12, structured_outputs=LETTERS),
    SamplingParams(seed=8, max_tokens=20, thinking_token_budget=5, reasoning=MARKS),
]
VOCAB = 100


def forget_at_random(llm: LLM) -> None:
    """Whatever the executor derives from texts may be dropped at any time."""
    executor: Any = llm.engine.executor
    submit: Callable[[Step], PendingStep] = executor.submit
    rng = random.Random(1)

    def forgetful(step: Step) -> PendingStep:
        if rng.random() < 0.3:
            executor.pasts.forget()
        return submit(step)

    executor.submit = forgetful


def serve(llm: LLM) -> dict[str, RequestOutput]:
    for number, (prompt, params) in enumerate(zip(random_prompts(*LENGTHS), PARAMS, strict=True)):
        llm.engine.add_request(str(number), prompt, params)
    outputs = {}
    while llm.engine.has_work:
        outputs |= {d.request_id: d.final for d in llm.engine.step() if d.final is not None}
    usage = llm.engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity, "leaked blocks"
    return outputs


LENGTHS = (21, 9, 33, 12, 5, 17, 11, 8, 14, 6)


def facts(outputs: dict[str, RequestOutput]) -> list[Any]:
    return [
        [(o.token_ids, o.text, o.finish_reason, o.stop_reason) for o in outputs[str(i)].outputs]
        for i in range(len(PARAMS))
    ]


def logprobs(outputs: dict[str, RequestOutput]) -> list[float]:
    found = []
    for i in range(len(PARAMS)):
        for output in outputs[str(i)].outputs:
            for table in output.logprobs or ():
                found += [one.logprob for one in table.values()]
    return found


@pytest.mark.parametrize(
    ("family", "tight_pool"), [("llama", "96KiB"), ("opt", "96KiB"), ("gemma3", "64KiB")]
)
@pytest.mark.parametrize("right", [1.0, 0.0, 0.6])
def test_no_token_changes(family: str, tight_pool: str, right: float, model_dir: ModelDir) -> None:
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "block_size": 4}
    expected = serve(LLM(model_dir(family), **settings))
    truth = {i: [o.token_ids for o in each.outputs] for i, each in expected.items()}
    tight = LLM(
        model_dir(family), **settings, kv_cache_memory_bytes=tight_pool, max_num_batched_tokens=24
    )
    for llm in (LLM(model_dir(family), **settings), tight):
        forget_at_random(llm)
        drafting = Drafting(llm.engine.scheduler, knowing(truth, right, VOCAB))
        found = serve(llm)
        assert facts(found) == facts(expected)
        assert logprobs(found) == pytest.approx(logprobs(expected), abs=1e-4)
        assert drafting.num_drafts > 20
    assert tight.engine.scheduler.stats.num_preemptions > 0


@pytest.mark.parametrize("draft", ["llama", "smollm"])
def test_nor_with_a_draft_model(
    draft: str, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "check_draft", lambda *_: None)  # it may be the target itself
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "block_size": 4}
    expected = serve(LLM(model_dir("llama"), **settings))
    llm = LLM(
        model_dir("llama"),
        **settings,
        kv_cache_memory_bytes="160KiB",
        max_num_batched_tokens=24,
        speculative_config={"method": "draft", "model": str(model_dir(draft))},
    )
    forget_at_random(llm)
    verified = Verified(llm)
    found = serve(llm)
    assert facts(found) == facts(expected)
    assert logprobs(found) == logprobs(expected)
    assert llm.engine.scheduler.stats.num_preemptions > 0
    assert verified.drafts > 20
    assert (verified.right == verified.drafts) == (draft == "llama")
