"""Forecasts of requests, on a clock that says what steps take, against what comes of them."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

import quire
from quire.capabilities.fairness import FairQueue
from quire.core.errors import QueueTimeoutError
from quire.core.memory import KeptState, LayeredAllocator, PagedAllocator, StateAllocator
from quire.core.protocol import (
    Outcome,
    PendingStep,
    PreemptionMode,
    RecoveryCosts,
    Request,
    Roster,
    Sample,
    SchedulingPolicy,
    Step,
    StepResult,
)
from quire.core.scheduling import BatchLimits, Queueing, Recovery, Scheduler
from quire.engine.engine import Engine
from quire.engine.forecast.ahead import Ahead
from quire.engine.forecast.forecasts import TextLengths
from quire.engine.forecast.outlook import Coming, Outlook, Supply, TaskAhead
from quire.engine.forecast.step_times import StepTimes, StepWork
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.engine.outputs import RequestOutput
from quire.text.params import SamplingParams
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
        self.between = 0.0  # seconds from a step's end to the next one's plan
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


def made(
    executor: Timed,
    most: int = 8,
    blocks: int = BLOCKS,
    recovery: Recovery = Recovery(),  # noqa: B008  # frozen
) -> Engine:
    allocator = PagedAllocator(blocks, BLOCK, num_host_blocks=blocks)
    scheduler = Scheduler(allocator, BatchLimits(most, 32), recovery=recovery)
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
        executor.now += executor.between
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


def test_what_prompts_take_is_not_forgotten_while_others_write() -> None:
    rng, pace = random.Random(1), StepTimes()

    def learn(tokens: int, sequences: int) -> None:
        work = StepWork(1.0, sequences, tokens + sequences, (tokens + sequences) * rng.random())
        pace.learn(work, cost(work) * rng.uniform(0.97, 1.03))

    for _ in range(40):
        learn(rng.randrange(100, 500), rng.randrange(1, 30))
    for _ in range(2000):
        learn(0, 3)
    work = StepWork(1.0, 4, 300, 150.0)
    assert pace.seconds(work) == pytest.approx(cost(work), rel=0.1)


def test_nothing_takes_less_than_nothing() -> None:
    """Where steps are alike, only their sum is known."""
    pace = StepTimes()
    for seconds in (0.1, 0.11, 0.09, 0.1):
        pace.learn(StepWork(1.0, 4, 4, 0.1), seconds)
    assert 0.09 < pace.seconds(StepWork(1.0, 4, 4, 0.1)) < 0.11
    assert pace.seconds(StepWork(1.0, 0, 0, 0)) >= 0


def test_a_lone_request_takes_its_steps() -> None:
    room, own = Supply(8, 32, 120, 4), TaskAhead(prompt=70, context=0, output=5)
    found = Outlook([], [own], room, lambda work: 1.0).of(own)
    assert found == (3.0, 7.0), "three chunks of its prompt, four more tokens"


def test_a_prompt_whose_last_chunk_is_under_way_takes_a_step() -> None:
    own = TaskAhead(prompt=0, context=70, output=5)
    assert Outlook([own], [], Supply(8, 32, 120, 4), lambda work: 1.0).of(own) == (1.0, 5.0)


def test_who_waits_for_memory_waits_for_an_end() -> None:
    running = TaskAhead(prompt=1, context=399, output=10, begun=True, blocks=100)
    own = TaskAhead(prompt=100, context=0, output=1)
    found = Outlook([running], [own], Supply(8, 200, 20, 4), lambda work: 1.0).of(own)
    assert found is not None and found.first_token == found.end == 11.0


@pytest.mark.parametrize("swap, end", [(None, 37.0), (0.5, 41.0)], ids=["recompute", "swap"])
def test_who_gives_way_comes_back_when_the_other_has_ended(swap: float | None, end: float) -> None:
    """Each takes two blocks of those that are free, at once; the third is for one alone.

    The last has written 4 of 20 tokens then. One block of its five is left when it comes back, so
    that 17 tokens are computed again, in two steps; or five are brought, as they were taken away.
    """
    first, own = (
        TaskAhead(prompt=1, context=16, output=20, begun=True, blocks=4) for _ in range(2)
    )
    room = Supply(8, 16, 2, 4, swap=swap)
    expected = Outlook([first, own], [], room, lambda work: 1.0)
    own.begun, own.first_token = True, 0.0
    found = expected.of(own)
    assert found is not None and found.end == end


@pytest.mark.parametrize("apart", [0.6, 3.0], ids=["crowded", "at ease"])
def test_most_forecasts_come_true(apart: float) -> None:
    executor = Timed(noise=0.1)
    engine = made(executor)
    served(engine, executor, 0, 10, apart)
    ended = served(engine, executor, 1, 150, apart)
    assert sum(output.metrics.expected_ttft is not None for output in ended) > 140
    assert near(ended) >= 0.9
    grade = engine.forecasts.grade
    assert grade.count >= 140 and grade.first_tokens is not None and grade.first_tokens >= 0.9


def near(ended: list[RequestOutput]) -> float:
    """The share of first tokens that came when they were expected."""
    pairs = [(one.metrics.expected_ttft, one.metrics.ttft) for one in ended]
    known = [(expected, came) for expected, came in pairs if expected and came]
    return sum(abs(a - b) <= max(0.2 * b, 0.05) for a, b in known) / len(known)


SWAP = Recovery(PreemptionMode.SWAP, RecoveryCosts(swap_per_block=1e-4))


@pytest.mark.parametrize("recovery", [Recovery(), SWAP], ids=["recompute", "swap"])
def test_who_gives_way_is_foreseen(recovery: Recovery) -> None:
    """Where the pool is so full that every third request gives way, ends come true as well."""
    executor = Timed(noise=0.1)
    engine = made(executor, blocks=50, recovery=recovery)
    served(engine, executor, 0, 10, 0.6)
    ended = served(engine, executor, 1, 100, 0.6)
    assert engine.scheduler.stats.num_preemptions > 20
    assert near(ended) >= 0.95
    grade = engine.forecasts.grade
    assert grade.ends is not None and grade.ends >= 0.9


def test_another_pace_is_learnt_again() -> None:
    executor = Timed()
    engine = made(executor)
    served(engine, executor, 0, 40, 1.0)
    executor.slower = 3.0
    served(engine, executor, 1, 60, 3.0)
    ended = served(engine, executor, 2, 60, 3.0)
    assert near(ended) >= 0.9


def test_what_is_between_steps_is_learnt_too() -> None:
    executor = Timed(noise=0.1)
    executor.between = 0.03  # half a step, or all of a short one
    engine = made(executor)
    served(engine, executor, 0, 20, 1.0)
    assert near(served(engine, executor, 1, 100, 1.0)) >= 0.9


def test_a_pace_that_changes_again_and_again_is_followed() -> None:
    """Others compute on the same cores half of the time; requests come ten at a time."""
    executor = Timed(noise=0.1)
    engine = made(executor, most=16, blocks=600)
    random_ = random.Random(1)
    ended = list[RequestOutput]()
    for burst in range(25):
        executor.slower = 2.0 if burst // 5 % 2 else 1.0
        for number in range(10):
            prompt = [random_.randrange(2, 900) for _ in range(random_.randrange(1, 40))]
            params = SamplingParams(max_tokens=random_.randrange(1, 30), ignore_eos=True)
            name = f"{burst}-{number}"
            engine.add_request(name, {"prompt_token_ids": prompt}, params, executor.now)
        while engine.has_work:
            ended += [each.final for each in engine.step() if each.final is not None]
        executor.now += 1.0
    assert near(ended[50:]) >= 0.7


def test_those_who_come_together_do_not_spoil_what_others_are_told() -> None:
    """Many prompts of a burst are read in one step, of which who came first knew nothing; that says
    nothing of those who come last, and wait for several.
    """
    executor = Timed(noise=0.1)
    allocator = PagedAllocator(4000, BLOCK)
    processor = InputProcessor(TOKENIZER, ModelOutputs(4096, [EOS]), max_model_len=2000, seed=0)
    scheduler = Scheduler(allocator, BatchLimits(8, 256))
    engine = Engine(scheduler, executor, processor, clock=lambda: executor.now)
    rng, ended = random.Random(2), list[RequestOutput]()
    for burst in range(20):
        for number in range(rng.randint(1, 16)):
            prompt = [rng.randrange(2, 900) for _ in range(rng.randint(5, 100))]
            params = SamplingParams(max_tokens=rng.randint(5, 60), ignore_eos=True)
            name = f"{burst}-{number}"
            engine.add_request(name, {"prompt_token_ids": prompt}, params, executor.now)
        apart = executor.now + 4.0
        while engine.has_work and executor.now < apart:
            ended += [each.final for each in engine.step() if each.final is not None]
        executor.now = max(executor.now, apart)
    assert near(ended[20:]) >= 0.6


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
    engine.forecasts.gathered()
    assert engine.forecasts.of("one 0") is not None
    assert engine.forecasts.of("one 299") is None
    while engine.has_work:
        engine.step()
    engine.add_request("later", {"prompt_token_ids": [5]}, params)
    engine.forecasts.gathered()
    assert engine.forecasts.of("later") is not None


def test_of_a_burst_one_thinks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    class Counted(Ahead):
        def __init__(self, *given: object) -> None:
            nonlocal looks
            looks += 1
            super().__init__(*given)  # type: ignore[arg-type]

    executor = Timed()
    engine = made(executor)
    served(engine, executor, 0, 20, 1.0)
    monkeypatch.setattr("quire.engine.forecast.forecasts.Ahead", Counted)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    for number in range(60):
        prompt = {"prompt_token_ids": [7 + number] * 30}
        engine.add_request(str(number), prompt, params)
    engine.abort("30")
    engine.abort("59")
    ended = []
    while engine.has_work:
        ended += [delta.final for delta in engine.step() if delta.final is not None]
    assert looks == 1 and len(ended) == 58
    assert near(ended) >= 0.9


def test_a_forecast_that_fails_ends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> Ahead:
        raise KeyError("nobody thought of that")

    executor = Timed()
    engine = made(executor)
    served(engine, executor, 0, 20, 1.0)
    monkeypatch.setattr("quire.engine.forecast.forecasts.Ahead", fails)
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    for number in range(3):
        engine.add_request(str(number), {"prompt_token_ids": [7 + number] * 30}, params)
    ended = []
    while engine.has_work:
        ended += [delta.final for delta in engine.step() if delta.final is not None]
    assert [one.error for one in ended] == [None] * 3
    assert all(one.metrics.expected_ttft is None for one in ended)


def test_of_turns_of_sessions() -> None:
    executor = Timed()
    engine = made(executor)
    served(engine, executor, 0, 20, 1.0)
    engine.sessions.open("talk")
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    for turn in range(2):
        engine.sessions.append("talk", [*range(2, 100)])
        engine.add_turn(f"turn {turn}", "talk", params)
        engine.forecasts.gathered()
        assert engine.forecasts.of(f"turn {turn}") is not None
        while engine.has_work:
            found = [d.final.metrics for d in engine.step() if d.final is not None]
        assert found[0].expected_ttft == pytest.approx(found[0].ttft, rel=0.2)


def test_how_long_a_text_becomes_by_those_that_came_so_far() -> None:
    lengths = TextLengths()
    assert lengths.whole(0) == math.inf
    for tokens in (10, 10, 10, 10, 100, 200):
        lengths.learn(tokens)
    assert lengths.whole(0) == pytest.approx(340 / 6)
    assert lengths.whole(10) == 150 and lengths.whole(150) == 200 and lengths.whole(200) == 300


def test_whoever_is_still_to_come_matters_to_ends() -> None:
    """Where one comes a second, of a hundred steps, a lone text takes longer than alone."""
    own, room = TaskAhead(prompt=32, context=0, output=101), Supply(8, 32, 1000, 4)
    alone = Outlook([], [own], room, lambda work: 0.1 * work.sequences).of(own)
    own = TaskAhead(prompt=32, context=0, output=101)
    outlook = Outlook([], [own], room, lambda work: 0.1 * work.sequences)
    among = outlook.of(own, Coming(apart=5.0, prompt=32, output=20))
    assert alone is not None and among is not None
    assert among.first_token == alone.first_token and among.end > 1.3 * alone.end


def test_clients_that_share_are_let_in_by_their_accounts() -> None:
    executor = Timed()
    scheduler = Scheduler(
        PagedAllocator(BLOCKS, BLOCK),
        BatchLimits(1, 32),
        Queueing(SchedulingPolicy.FAIR, accounts=FairQueue),
    )
    processor = InputProcessor(TOKENIZER, ModelOutputs(4096, [EOS]), max_model_len=400, seed=0)
    engine = Engine(scheduler, executor, processor, clock=lambda: executor.now)
    served(engine, executor, 0, 20, 1.0)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    for number, client in enumerate(["many"] * 6 + ["few"]):
        prompt = {"prompt_token_ids": [7 + number] * 30, "client": client}
        engine.add_request(f"{client} {number}", prompt, params)
    order = [group.request.request_id for group in scheduler.queue.order()]
    assert order[:3] == ["many 0", "few 6", "many 1"]
    engine.forecasts.gathered()
    expected = engine.forecasts.of("few 6")
    ended = [delta.final for _ in range(400) if engine.has_work for delta in engine.step()]
    (few,) = (one.metrics for one in ended if one is not None and one.request_id == "few 6")
    assert expected is not None and expected.first_token == pytest.approx(few.ttft, rel=0.2)


def test_when_there_is_room_in_line_is_foreseen() -> None:
    """By what each of those who wait takes, not by how fast others went."""
    executor = Timed()
    engine = made(executor, most=1)
    served(engine, executor, 0, 20, 1.0)
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    for number in range(4):
        engine.add_request(str(number), {"prompt_token_ids": [7 + number] * 30}, params)
    engine.forecasts.gathered()
    began, told = executor.now, [engine.waiting_room.wait_of(count) for count in (2, 3, 4)]
    came = []
    while engine.has_work:
        waiting = engine.scheduler.queue.num_new
        engine.step()
        if 0 < waiting != engine.scheduler.queue.num_new:
            came.append(executor.now - began)
    assert came[1:] == pytest.approx(told, rel=0.2)


@pytest.mark.parametrize("come_true", [True, False])
def test_who_is_sure_to_wait_too_long_is_refused_at_once(come_true: bool) -> None:
    executor = Timed()
    engine = made(executor, most=1)
    served(engine, executor, 0, 40, 20.0)
    engine.scheduler.max_queue_time = 3.0
    assert engine.forecasts.grade.count >= 16
    if not come_true:
        engine.forecasts._kept.extend([(False, False)] * 500)
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    for number in range(3):
        engine.add_request(str(number), {"prompt_token_ids": [7 + number] * 30}, params)
    assert engine.forecasts.will_wait(3.0) == come_true
    engine.forecasts.began(Request("pooled", (7, 8), SamplingParams(), 0, 0))
    assert not engine.forecasts.will_wait(3.0), "of one that no forecast is made for"
    failures = {one.request_id: one.failure for one in engine.step() if one.failure is not None}
    if come_true:
        assert [*failures] == ["2"] or [*failures] == ["1", "2"]
        error = failures["2"]
        assert isinstance(error, QueueTimeoutError) and 1 <= error.retry_after <= 600
        assert "would wait longer than max_queue_time, 3 s" in str(error)
    else:
        assert not failures
    while engine.has_work:
        engine.step()


def test_layers_without_keys_and_values_never_want_for_blocks() -> None:
    executor = Timed()
    states = StateAllocator(12, BLOCK, 0, KeptState(every=16, decoding=16))
    scheduler = Scheduler(LayeredAllocator(BLOCK, [], states), BatchLimits(8, 32))
    processor = InputProcessor(TOKENIZER, ModelOutputs(4096, [EOS]), max_model_len=400, seed=0)
    engine = Engine(scheduler, executor, processor, clock=lambda: executor.now)
    served(engine, executor, 0, 20, 1.0)
    ended = served(engine, executor, 1, 30, 1.0)
    assert near(ended) >= 0.9 and engine.forecasts.grade.count >= 30


def test_a_burst_of_arrivals_takes_no_more_than_there_is_room_for() -> None:
    own, room = TaskAhead(64, 0, 32), Supply(4, 64, 1000, 16)
    outlook = Outlook([], [own], room, lambda work: 0.1 * work.sequences)
    made = 0
    numbered = outlook._numbered

    def count(task: TaskAhead) -> TaskAhead:
        nonlocal made
        made += 1
        return numbered(task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outlook, "_numbered", count)
        found = outlook.of(own, Coming(0.0005, 8, 4))
    assert found is not None and found.end > 5
    assert made < 100
