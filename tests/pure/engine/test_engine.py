"""The engine over the fake model: text, stop strings, refusals, failures, aborts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.core.errors import RequestError
from quire.core.memory import PagedAllocator
from quire.core.protocol import Outcome, PendingStep, Roster, Sample, Step, StepResult
from quire.core.scheduling import BatchLimits, Scheduler
from quire.engine.engine import Engine
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.engine.outputs import Delta, RequestOutput
from quire.text.params import SamplingParams
from quire.text.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(Path(quire.__file__).parent / "models/demo")
STORY = TOKENIZER.encode("one two three four five six seven eight", add_special_tokens=False)
EOS = 0


class Storyteller:
    """Every output is the same story; steps or single sequences can be made to fail."""

    def __init__(self, story: Sequence[int]) -> None:
        self.story = list(story)
        self.roster = Roster()
        self.break_step = False
        self.fail_prompts: set[int] = set()  # first tokens of prompts that give no sample

    def submit(self, step: Step) -> PendingStep:
        known = self.roster.follow(step)
        if self.break_step:
            self.break_step = False
            raise RuntimeError("device lost")
        outcomes = {}
        for chunk, (_, request, _, _) in zip(step.chunks, known, strict=True):
            prompt = request.prompt_token_ids
            position = chunk.start + len(chunk.token_ids) - len(prompt)
            if chunk.readout is None:
                continue
            if prompt[0] in self.fail_prompts:
                outcomes[chunk.seq_id] = Outcome(failure="no number")
            else:
                token = Sample(self.story[position] if position < len(self.story) else EOS)
                outcomes[chunk.seq_id] = Outcome([token], [token] * (chunk.readout.draws - 1))
        return PendingStep(step, lambda: StepResult(outcomes))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.25
        return self.now


def make_engine(story: Sequence[int] = STORY) -> tuple[Engine, Storyteller]:
    executor = Storyteller(story)
    scheduler = Scheduler(PagedAllocator(64, 4), BatchLimits(8, 32))
    input_processor = InputProcessor(TOKENIZER, ModelOutputs(4096, [EOS]), max_model_len=64, seed=0)
    return Engine(scheduler, executor, input_processor, clock=Clock()), executor


def run(engine: Engine) -> tuple[list[Delta], dict[str, RequestOutput]]:
    deltas: list[Delta] = []
    while engine.has_work:
        deltas += engine.step()
    usage = engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity, "leaked blocks"
    return deltas, {d.request_id: d.final for d in deltas if d.final is not None}


def finish(story: Sequence[int] = STORY, **params: Any) -> tuple[list[Delta], RequestOutput]:
    engine, _ = make_engine(story)
    engine.add_request("r", "Tell me", SamplingParams(**{"max_tokens": 40, **params}))
    deltas, outputs = run(engine)
    return deltas, outputs["r"]


def test_the_deltas_add_up_to_the_output() -> None:
    deltas, output = finish()
    (completion,) = output.outputs
    assert completion.text == "one two three four five six seven eight"
    assert completion.token_ids == [*STORY, EOS]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
    assert "".join(d.text for d in deltas) == completion.text
    assert [t for d in deltas for t in d.token_ids] == completion.token_ids
    assert [d.first for d in deltas] == [True] + [False] * (len(deltas) - 1)
    assert output.prompt == "Tell me"


def test_the_length_ends_a_text() -> None:
    _, output = finish(max_tokens=3)
    assert output.outputs[0].finish_reason == "length"
    assert output.outputs[0].token_ids == list(STORY[:3])


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_ends_a_text_and_frees_its_blocks(include: bool) -> None:
    deltas, output = finish(stop=["three f"], include_stop_str_in_output=include)
    completion = output.outputs[0]
    assert completion.text == ("one two three f" if include else "one two ")
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "three f")
    assert "".join(d.text for d in deltas) == completion.text


def test_a_stop_token_ends_a_text() -> None:
    stop = STORY[2]
    _, output = finish(stop_token_ids=[stop])
    completion = output.outputs[0]
    assert completion.token_ids == list(STORY[:3])
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert completion.text == TOKENIZER.decode(STORY[:2])


def test_no_stop_before_min_tokens() -> None:
    _, output = finish([*STORY, *STORY], stop=["two"], min_tokens=len(STORY))
    assert output.outputs[0].text.count("two") == 1
    assert output.outputs[0].stop_reason == "two"


def test_one_branch_may_stop_before_the_others() -> None:
    _, output = finish(n=3, stop=["five"])
    assert [c.text for c in output.outputs] == ["one two three four "] * 3
    assert [c.index for c in output.outputs] == [0, 1, 2]


def test_without_detokenizing_there_are_only_ids() -> None:
    _, output = finish(detokenize=False)
    assert output.outputs[0].text == ""
    assert output.outputs[0].token_ids == [*STORY, EOS]


def test_times_are_on_the_engines_clock() -> None:
    deltas, output = finish()
    metrics = output.metrics
    assert metrics.ttft == pytest.approx(deltas[0].seconds)
    assert metrics.e2e_latency == pytest.approx(sum(d.seconds for d in deltas))
    assert metrics.num_output_tokens == len(STORY) + 1


def test_a_step_that_breaks_ends_its_requests_and_nothing_else() -> None:
    engine, executor = make_engine()
    engine.add_request("a", "Tell me", SamplingParams(n=2))
    engine.step()
    executor.break_step = True
    (delta,) = engine.step()
    assert (delta.request_id, delta.finish_reason) == ("a", "error")
    assert "failed" in str(delta.stop_reason)
    assert delta.final is not None
    engine.add_request("b", "Tell me", SamplingParams())
    _, outputs = run(engine)
    assert outputs["b"].outputs[0].finish_reason == "stop"


def test_a_sequence_that_cannot_be_sampled_ends_alone() -> None:
    engine, executor = make_engine()
    executor.fail_prompts = {7}
    engine.add_request("bad", [7, 8], SamplingParams())
    engine.add_request("good", [9, 8], SamplingParams())
    _, outputs = run(engine)
    assert outputs["bad"].outputs[0].finish_reason == "error"
    assert outputs["good"].outputs[0].finish_reason == "stop"


def test_an_abort_frees_the_blocks_at_once() -> None:
    engine, _ = make_engine()
    engine.add_request("a", "Tell me", SamplingParams(n=4))
    engine.step()
    assert engine.abort("a")
    assert not engine.abort("a")
    assert not engine.has_work
    assert run(engine) == ([], {})


BAD_PROMPTS: list[tuple[Any, dict[str, Any], str]] = [
    ("", {}, "prompt"),
    ([], {}, "prompt"),
    (5, {}, "prompt"),
    (None, {}, "prompt"),
    ([1, "a"], {}, "prompt"),
    ([1.5], {}, "prompt"),
    ([True], {}, "prompt"),
    ([4096], {}, "prompt"),
    ([-1], {}, "prompt"),
    ("\ud800", {}, "prompt"),
    ({"text": "x"}, {}, "prompt"),
    ({"prompt": "x", "prompt_token_ids": [1]}, {}, "prompt"),
    ([1] * 64, {}, "prompt"),
    ({"prompt": "x", "priority": 1001}, {}, "priority"),
    ({"prompt": "x", "priority": -(10**308)}, {}, "priority"),
    ({"prompt": "x", "priority": True}, {}, "priority"),
    ({"prompt": "x", "cache_salt": 5}, {}, "cache_salt"),
    ([1] * 60, {"max_tokens": 5}, "max_tokens"),
    ([1] * 60, {"max_tokens": None, "min_tokens": 5}, "min_tokens"),
    ([1], {"stop_token_ids": [4096]}, "stop_token_ids"),
    ([1], {"allowed_token_ids": [4096]}, "allowed_token_ids"),
    ([1], {"logit_bias": {4096: 1.0}}, "logit_bias"),
    ([1], {"n": 9}, "n"),
]


@pytest.mark.parametrize(("prompt", "params", "field"), BAD_PROMPTS)
def test_a_bad_request_is_refused_by_name(prompt: Any, params: Any, field: str) -> None:
    engine, _ = make_engine()
    with pytest.raises(RequestError) as caught:
        engine.add_request("r", prompt, SamplingParams(**params))
    assert caught.value.field == field
    assert not engine.has_work


@pytest.mark.parametrize("prompt", ["Hi", {"prompt": "Hi"}, [5, 6], {"prompt_token_ids": (5, 6)}])
def test_prompts_come_in_four_shapes(prompt: Any) -> None:
    engine, _ = make_engine()
    engine.add_request("r", prompt, SamplingParams())
    assert "r" in run(engine)[1]


def test_an_id_in_use_is_refused_and_the_first_request_lives() -> None:
    engine, _ = make_engine()
    engine.add_request("r", "Hi", SamplingParams())
    with pytest.raises(RequestError):
        engine.add_request("r", "Hi", SamplingParams())
    assert "r" in run(engine)[1]


def test_no_limit_means_up_to_the_models_length() -> None:
    _, output = finish([5] * 100, max_tokens=None)
    total = len(output.prompt_token_ids) + len(output.outputs[0].token_ids)
    assert total == 64


def test_waste_is_measured_over_time() -> None:
    engine, _ = make_engine()
    engine.add_request("r", [1] * 6, SamplingParams())
    run(engine)
    efficiency = engine.stats.kv_efficiency
    # Fills blocks of 4 one slot a step: between one token more than a block and a full one.
    assert efficiency is not None and 0.7 < efficiency < 1.0


@pytest.mark.parametrize(
    "params", [{}, {"max_tokens": 3}, {"stop": ["three f"]}, {"stop_token_ids": [STORY[2]]}]
)
def test_memory_is_charged_however_a_text_ends(params: dict[str, Any]) -> None:
    _, output = finish(**params)
    # Some block was held from the first token to the last.
    lasted = output.metrics.e2e_latency - (output.metrics.ttft or 0.0)
    assert lasted > 0
    assert output.metrics.block_seconds >= lasted


def test_memory_is_charged_to_a_request_that_fails() -> None:
    engine, executor = make_engine()
    engine.add_request("a", "Tell me", SamplingParams())
    engine.step()
    executor.break_step = True
    (delta,) = engine.step()
    assert delta.final is not None and delta.final.metrics.block_seconds > 0
