"""How many may wait, and what those are told who may not."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.core.errors import QueueFullError, QueueTimeoutError, RequestError
from quire.core.memory import PagedAllocator
from quire.core.protocol import Step, StepResult
from quire.core.scheduling.request_queue import Queueing, RequestQueue
from quire.engine.async_engine import AsyncEngine
from quire.engine.engine import Engine
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.engine.waiting_room import QueueLimits, WaitingRoom
from quire.text.params import SamplingParams
from quire.text.tokenizer import load_tokenizer
from support.fake_model import FakeExecutor
from support.schedulers import make_scheduler

TOKENIZER = load_tokenizer(Path(quire.__file__).parent / "models/demo")


class Seen(RequestQueue):
    """A line of which only numbers are looked at."""

    def __init__(self) -> None:
        super().__init__(Queueing())
        self.wait = 0

    @property
    def num_new(self) -> int:
        return self.wait


def test_before_anything_was_seen_one_leaves_a_second() -> None:
    room = WaitingRoom(Seen(), QueueLimits(10))
    assert room.seconds_until(1) == 1
    assert room.seconds_until(20) == 20
    assert room.seconds_until(10_000) == 600


@pytest.mark.parametrize("rate", [0.1, 5.0, 200.0])
def test_the_estimate_comes_near_the_rate_at_which_they_leave(rate: float) -> None:
    line = Seen()
    room, line.wait = WaitingRoom(line, QueueLimits(10)), 10
    for step in range(4000):
        line.num_left = int(step * 0.1 * rate)
        room.observe(step * 0.1)
    assert room.seconds_until(100) == pytest.approx(min(max(100 / rate, 1), 600), rel=0.3)


def test_time_in_which_nobody_waits_says_nothing() -> None:
    line = Seen()
    room, line.wait = WaitingRoom(line, QueueLimits(10)), 10
    for second in range(200):
        line.num_left = second * 5
        room.observe(float(second))
    busy = room.seconds_until(100)
    line.wait = 0
    room.observe(200.0)
    room.observe(90_000.0)
    assert room.seconds_until(100) == pytest.approx(busy, rel=0.05)


def test_when_nobody_leaves_the_estimate_grows_but_not_for_ever() -> None:
    line = Seen()
    room, line.wait = WaitingRoom(line, QueueLimits(10)), 10
    estimates = []
    for second in range(1000):
        room.observe(float(second))
        estimates.append(room.seconds_until(1))
    assert estimates == sorted(estimates)
    assert 30 < estimates[-1] < 120


def test_room_is_kept_for_those_that_are_on_their_way() -> None:
    line = Seen()
    room, line.wait = WaitingRoom(line, QueueLimits(4)), 1
    with room.reserve(2):
        with pytest.raises(QueueFullError, match="3 requests wait, and max_num_waiting is 4"):
            room.reserve(2).__enter__()
        with room.reserve(1):
            pass
    with room.reserve(3):
        pass
    assert room.num_refused == 2


def test_what_can_never_wait_is_no_matter_of_time() -> None:
    with pytest.raises(RequestError, match="at most max_num_waiting, 4, prompts; got 5") as caught:
        WaitingRoom(Seen(), QueueLimits(4)).reserve(5).__enter__()
    assert caught.value.field == "prompt"


class Gate:
    """A command at which the engine's thread stands until it may go on."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.go.wait(60)


class HeldExecutor(FakeExecutor):
    """Computes nothing until it is let."""

    def __init__(self) -> None:
        super().__init__(64, 4)
        self.go = threading.Event()

    def execute(self, step: Step) -> StepResult:
        assert self.go.wait(20)
        return super().execute(step)


def make_engine(executor: FakeExecutor, limit: int | None, **limits: Any) -> Engine:
    settings = {"max_num_seqs": 1, "max_num_batched_tokens": 32, **limits}
    scheduler = make_scheduler(PagedAllocator(64, 4), **settings)
    input_processor = InputProcessor(TOKENIZER, ModelOutputs(4096), max_model_len=200, seed=0)
    return Engine(scheduler, executor, input_processor, queue=QueueLimits(limit))


async def collect(engine: AsyncEngine, *names: str, prompt: Any = (1, 2, 3)) -> int:
    """How many tokens came."""
    steps = engine.generate(dict.fromkeys(names, prompt), SamplingParams(max_tokens=3, seed=1))
    return sum([len(delta.token_ids) async for deltas in steps for delta in deltas])


def test_a_refusal_costs_nothing_and_is_of_all_or_none() -> None:
    async def main() -> None:
        executor = HeldExecutor()
        engine = AsyncEngine(make_engine(executor, 3))
        engine.start()
        line = engine.engine.scheduler.queue
        first = asyncio.create_task(collect(engine, "running"))
        while not engine.engine.scheduler.running:
            await asyncio.sleep(0.001)
        # The commands of these wait for the step to end: what is on its way counts as well.
        two = asyncio.create_task(collect(engine, "b", "c"))
        await asyncio.sleep(0.01)
        engine.engine.input_processor.prepare = None  # type: ignore[assignment, method-assign]
        with pytest.raises(QueueFullError) as caught:
            await collect(engine, "d", "e")
        assert caught.value.retry_after >= 1
        assert set(engine._delivery.collectors) == {"running", "b", "c"}
        assert engine._thread._commands.qsize() <= 1
        del engine.engine.input_processor.prepare  # type: ignore[method-assign]
        one = asyncio.create_task(collect(engine, "f"))
        await asyncio.sleep(0)  # it has its place before the others move on
        executor.go.set()
        assert await asyncio.gather(first, two, one) == [3, 6, 3]
        assert line.num_new == 0
        assert await collect(engine, "g", "h", "i") == 9  # there is room again
        await engine.stop()

    asyncio.run(main())


def test_who_has_just_been_queued_counts_once() -> None:
    async def main() -> None:
        engine = AsyncEngine(make_engine(FakeExecutor(64, 4), 2))
        room, line = engine.engine.waiting_room, engine.engine.scheduler.queue
        queue, seen = Gate(), Gate()
        engine.start()
        engine._thread.put(queue)
        await asyncio.to_thread(queue.reached.wait, 60)
        first = asyncio.create_task(collect(engine, "a"))
        while engine._thread._commands.empty():
            await asyncio.sleep(0.001)
        engine._thread.put(seen)
        queue.go.set()
        while line.num_new == 0:  # the loop has no turn in which it could hear of it
            time.sleep(0.001)
        try:
            with room.reserve(1), pytest.raises(QueueFullError, match="2 requests wait"):
                room.reserve(1).__enter__()
        finally:
            seen.go.set()
        assert await first == 3
        await engine.stop()
        assert room._coming == 0

    asyncio.run(main())


def test_who_left_before_it_was_queued_gives_up_its_place_once() -> None:
    line = Seen()
    room = WaitingRoom(line, QueueLimits(4))
    with room.reserve(3) as places:
        with places.take():
            line.wait += 1
        with pytest.raises(RequestError), places.take():
            raise RequestError("refused", "prompt")
    with places.take():  # the caller was cancelled, and the engine comes to it now
        line.wait += 1
    with room.reserve(2), pytest.raises(QueueFullError, match="4 requests wait"):
        room.reserve(1).__enter__()


def test_offline_any_number_may_wait() -> None:
    engine = make_engine(FakeExecutor(64, 4), 2)
    for number in range(20):
        engine.add_request(str(number), [1, 2, 3], SamplingParams(max_tokens=2))
    ended = [delta for _ in range(100) if engine.has_work for delta in engine.step() if delta.final]
    assert len(ended) == 20


def test_who_waited_too_long_is_told_when_to_come_again() -> None:
    now = 0.0
    scheduler = make_scheduler(PagedAllocator(64, 4), 1, max_queue_time=5.0)
    input_processor = InputProcessor(TOKENIZER, ModelOutputs(4096), max_model_len=200, seed=0)
    engine = Engine(scheduler, FakeExecutor(64, 4), input_processor, clock=lambda: now)
    for name in ("a", "b"):
        engine.add_request(name, [1, 2, 3], SamplingParams(max_tokens=50))
    assert [delta.request_id for delta in engine.step()] == ["a"]
    now = 6.0
    told, going_on = engine.step()
    assert (told.request_id, going_on.request_id) == ("b", "a")
    assert isinstance(told.failure, QueueTimeoutError)
    assert str(told.failure) == ("the request waited 6 s to be let in; max_queue_time is 5 s")
    assert told.failure.retry_after >= 1
    assert told.final is not None and told.finish_reason == "error"
    assert told.final.metrics.finished_time == 6.0
    assert not engine.abort("b") and engine.abort("a")
    assert not engine.has_work


def test_one_prompt_of_the_longest_may_always_wait() -> None:
    room = WaitingRoom(RequestQueue(Queueing()), QueueLimits(None, 1000, 500))
    refused = pytest.raises(QueueFullError, match="500 tokens")
    with room.reserve(1, [[5] * 500]), refused, room.reserve(1, ["a text of some tokens"]):
        pass
    assert room._tokens_coming == room._coming == 0
    never = pytest.raises(RequestError, match="at most 500 tokens together")
    with never, room.reserve(2, [[5] * 250, [5] * 251]):
        pass


def test_what_a_text_turns_out_to_hold_is_what_counts() -> None:
    """Counted at first by its characters, as few tokens as they can well be."""
    room = WaitingRoom(RequestQueue(Queueing()), QueueLimits(None, 128 * 100))
    with room.reserve(2, [{"prompt": "x" * 100}, {"prompt_token_ids": [5] * 10}]) as places:
        assert room._tokens_coming == 30
        places.weigh(20, at_least=True)
        assert room._tokens_coming == 30, "the others are not known yet"
        places.weigh(90)
        with room.reserve(1) as others:
            with pytest.raises(QueueFullError, match="90 tokens, and there is memory for 100"):
                others.weigh(11)
            assert room._tokens_coming == 90, "as if nobody had asked"
            others.weigh(10)
        with places.take(60):
            pass
        assert room._tokens_coming == 30
    assert room._tokens_coming == room._coming == 0
