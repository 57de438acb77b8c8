"""Forecasts of requests, on a clock that says what steps take, against what comes of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import quire
from quire.core.memory import PagedAllocator
from quire.core.protocol import (
    Outcome,
    PendingStep,
    Roster,
    Sample,
    SamplingParams,
    Step,
    StepResult,
)
from quire.core.scheduling import BatchLimits, Scheduler
from quire.engine.engine import Engine
from quire.engine.forecast.outlook import MostAtOnce, Outlook, TaskAhead
from quire.engine.forecast.step_times import StepTimes, StepWork
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.engine.outputs import RequestOutput
from quire.text.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(Path(quire.__file__).parent / "models/demo")
WORD, EOS = 300, 0
BLOCK, BLOCKS = 4, 120


def cost(work: StepWork) -> float:
    """Of a step, in seconds: two thirds of a lone token's are the step's own."""
    return 0.02 + 4e-3 * work.sequences + 1e-3 * work.tokens + 5e-3 * work.attended


class Timed:
    """Writes the same word for ever; each step takes what it costs, and now and then longer."""

    def __init__(self, noise: float = 0.0) -> None:
        self.now, self.noise = 0.0, noise
        self.slower = 1.0
        self._roster, self._rng = Roster(), random.Random(0)

    def submit(self, step: Step) -> PendingStep:
        self._roster.follow(step)
        self.now += self.slower * cost(StepWork.of(step)) * (1 + self.noise * self._rng.random())
        outcomes = {
            chunk.seq_id: Outcome([Sample(WORD)])
            for chunk in step.chunks
            if chunk.readout is not None
        }
        return PendingStep(step, lambda: StepResult(outcomes))


def made(executor: Timed, most: int = 8) -> Engine:
    scheduler = Scheduler(PagedAllocator(BLOCKS, BLOCK), BatchLimits(most, 32))
    processor = InputProcessor(TOKENIZER, ModelOutputs(4096, [EOS]), max_model_len=400, seed=0)
    return Engine(scheduler, executor, processor, clock=lambda: executor.now)


def served(
    engine: Engine, executor: Timed, seed: int, count: int, apart: float
) -> list[RequestOutput]:
    """Requests that come at random, with what became of them."""
    rng, ended = random.Random(seed), list[RequestOutput]()
    coming = []
    at = executor.now
    for number in range(count):
        at += rng.expovariate(1 / apart)
        coming.append((at, f"{seed}-{number}"))
    while coming or engine.has_work:
        if not engine.has_work:
            executor.now = max(executor.now, coming[0][0])
        while coming and coming[0][0] <= executor.now:
            arrival, name = coming.pop(0)
            prompt = [rng.randrange(2, 900) for _ in range(rng.randrange(1, 120))]
            params = SamplingParams(max_tokens=rng.randrange(1, 60), ignore_eos=True)
            engine.add_request(name, {"prompt_token_ids": prompt}, params, arrival)
        for delta in engine.step():
            if delta.final is not None:
                ended.append(delta.final)
    return ended


def test_the_pace_is_learnt_from_steps_whatever_they_compute() -> None:
    rng, pace = random.Random(1), StepTimes()
    assert not pace.is_known
    for _ in range(40):
        sequences = rng.randrange(1, 30)
        tokens = sequences + rng.choice([0, rng.randrange(500)])
        work = StepWork(1.0, sequences, tokens, tokens * rng.random())
        pace.learn(work, cost(work))
    assert pace.is_known
    for work in (StepWork(1, 1, 1, 0.01), StepWork(1, 64, 64, 30.0), StepWork(1, 3, 1500, 400.0)):
        assert pace.seconds(work) == pytest.approx(cost(work), rel=1e-3)


def test_nothing_takes_less_than_nothing() -> None:
    """Where steps are alike, only their sum is known."""
    pace = StepTimes()
    for seconds in (0.1, 0.11, 0.09, 0.1):
        pace.learn(StepWork(1.0, 4, 4, 0.1), seconds)
    assert 0.09 < pace.seconds(StepWork(1.0, 4, 4, 0.1)) < 0.11
    assert pace.seconds(StepWork(1.0, 0, 0, 0)) >= 0


def test_a_lone_request_takes_its_steps() -> None:
    room, own = MostAtOnce(8, 32, 480), TaskAhead(prompt=70, context=0, output=5)
    found = Outlook([], [own], room, lambda work: 1.0).of(own)
    assert found == (3.0, 7.0), "three chunks of its prompt, four more tokens"


def test_a_prompt_whose_last_chunk_is_under_way_takes_a_step() -> None:
    own = TaskAhead(prompt=0, context=70, output=5)
    assert Outlook([own], [], MostAtOnce(8, 32, 480), lambda work: 1.0).of(own) == (1.0, 5.0)


def test_who_waits_for_memory_waits_for_an_end() -> None:
    running = TaskAhead(prompt=1, context=399, output=10, begun=True)
    own = TaskAhead(prompt=100, context=0, output=1)
    found = Outlook([running], [own], MostAtOnce(8, 200, 480), lambda work: 1.0).of(own)
    assert found is not None and found.first_token == found.end == 11.0


@pytest.mark.parametrize("apart", [0.6, 3.0], ids=["crowded", "at ease"])
def test_most_forecasts_come_true(apart: float) -> None:
    executor = Timed(noise=0.1)
    engine = made(executor)
    served(engine, executor, 0, 10, apart)
    ended = served(engine, executor, 1, 150, apart)
    told = [output.metrics for output in ended if output.metrics.expected_ttft is not None]
    assert len(told) > 140
    near = [
        abs(one.expected_ttft - one.ttft) <= max(0.2 * one.ttft, 0.05)
        for one in told
        if one.expected_ttft is not None and one.ttft is not None
    ]
    assert sum(near) >= 0.9 * len(told)
    grade = engine.forecasts.grade
    assert grade.count >= 140 and grade.first_tokens is not None and grade.first_tokens >= 0.9


def test_another_pace_is_learnt_again() -> None:
    executor = Timed()
    engine = made(executor)
    served(engine, executor, 0, 40, 1.0)
    executor.slower = 3.0
    served(engine, executor, 1, 60, 3.0)
    ended = served(engine, executor, 2, 60, 3.0)
    near = sum(
        abs(one.metrics.expected_ttft - one.metrics.ttft) <= max(0.2 * one.metrics.ttft, 0.05)
        for one in ended
        if one.metrics.expected_ttft is not None and one.metrics.ttft is not None
    )
    assert near >= 0.9 * len(ended)


def test_what_is_cached_is_not_read_again() -> None:
    executor = Timed()
    engine = made(executor)
    served(engine, executor, 0, 20, 1.0)
    prompt = {"prompt_token_ids": list(range(2, 100))}
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    found = []
    for name in ("cold", "warm"):
        engine.add_request(name, prompt, params)
        while engine.has_work:
            found += [d.final.metrics for d in engine.step() if d.final is not None]
    cold, warm = found
    assert warm.expected_ttft is not None and cold.expected_ttft is not None
    assert warm.expected_ttft < 0.5 * cold.expected_ttft
    assert warm.expected_ttft == pytest.approx(warm.ttft, rel=0.2)


def test_nothing_is_said_behind_a_crowd() -> None:
    """What a forecast costs has a bound: the crowd is not even looked at."""
    executor = Timed()
    engine = made(executor)
    served(engine, executor, 0, 20, 1.0)
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    for number in range(300):
        engine.add_request(f"one {number}", {"prompt_token_ids": [5]}, params)
    assert engine.forecasts.of("one 0") is not None
    assert engine.forecasts.of("one 299") is None
    while engine.has_work:
        engine.step()
    engine.add_request("later", {"prompt_token_ids": [5]}, params)
    assert engine.forecasts.of("later") is not None


def test_of_turns_of_sessions() -> None:
    executor = Timed()
    engine = made(executor)
    served(engine, executor, 0, 20, 1.0)
    engine.sessions.open("talk")
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    for turn in range(2):
        engine.sessions.append("talk", [*range(2, 100)])
        engine.add_turn(f"turn {turn}", "talk", params)
        assert engine.forecasts.of(f"turn {turn}") is not None
        while engine.has_work:
            found = [d.final.metrics for d in engine.step() if d.final is not None]
        assert found[0].expected_ttft == pytest.approx(found[0].ttft, rel=0.2)
