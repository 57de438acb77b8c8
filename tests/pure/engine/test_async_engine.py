"""Requests as async iterators over an engine in a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest

import quire
from quire.core.errors import EngineError, RequestError
from quire.core.memory import PagedAllocator
from quire.core.protocol import Step, StepResult
from quire.core.scheduling import BatchLimits, Scheduler
from quire.engine.async_engine import AsyncEngine, Deltas
from quire.engine.engine import Engine
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.text.params import SamplingParams
from quire.text.tokenizer import load_tokenizer
from support.fake_model import FakeExecutor

TOKENIZER = load_tokenizer(Path(quire.__file__).parent / "models/demo")
PROMPT = [1, 2, 3]
_T = TypeVar("_T")


def make_engine(executor: FakeExecutor) -> Engine:
    scheduler = Scheduler(PagedAllocator(64, 4), BatchLimits(8, 32))
    input_processor = InputProcessor(TOKENIZER, ModelOutputs(4096), max_model_len=200, seed=0)
    return Engine(scheduler, executor, input_processor)


@asynccontextmanager
async def running(executor: FakeExecutor | None = None) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(make_engine(executor or FakeExecutor(64, 4)))
    engine.start()
    try:
        yield engine
    finally:
        await asyncio.wait_for(engine.stop(), 10)


class SlowExecutor(FakeExecutor):
    """Leaves time to do something while a request runs."""

    def execute(self, step: Step) -> StepResult:
        time.sleep(0.005)
        return super().execute(step)


async def collect(engine: AsyncEngine, request_id: str, tokens: int) -> list[int]:
    params = SamplingParams(max_tokens=tokens, seed=1, ignore_eos=True)
    steps = engine.generate({request_id: PROMPT}, params)
    return [token async for deltas in steps for delta in deltas for token in delta.token_ids]


async def idle(engine: AsyncEngine) -> None:
    for _ in range(1000):
        if not engine.engine.has_work:
            break
        await asyncio.sleep(0.005)
    usage = engine.engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity


def test_many_at_once_give_what_each_gives_alone() -> None:
    async def main() -> None:
        async with running() as engine:
            alone = await collect(engine, "alone", 20)
            together = await asyncio.gather(*(collect(engine, str(i), 20) for i in range(6)))
            assert together == [alone] * 6
            await idle(engine)

    asyncio.run(main())


def test_memory_is_given_back_when_nobody_has_come_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire.engine.async_engine._REST", 0.02)
    living: list[int] = []

    async def main() -> None:
        async with running(SlowExecutor(64, 4)) as engine:
            monkeypatch.setattr(
                engine, "give_memory_back", lambda: living.append(len(engine._delivery.collectors))
            )
            await asyncio.gather(collect(engine, "long", 40), collect(engine, "short", 2))
            assert not living, "one of them ran on"
            while not living:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.1)
            assert living == [0], "once"

    asyncio.run(main())


def test_closing_the_iterator_frees_the_blocks() -> None:
    async def main() -> None:
        async with running(SlowExecutor(64, 4)) as engine:
            steps = engine.generate({"r": PROMPT}, SamplingParams(max_tokens=190, ignore_eos=True))
            assert (await anext(steps))[0].first
            await steps.aclose()
            await idle(engine)

    asyncio.run(main())


def test_an_id_in_use_is_refused_and_its_first_owner_unharmed() -> None:
    async def main() -> None:
        async with running(SlowExecutor(64, 4)) as engine:
            first = asyncio.create_task(collect(engine, "r", 150))
            while "r" not in engine._delivery.collectors:
                await asyncio.sleep(0)
            with pytest.raises(RequestError, match="already running"):
                await collect(engine, "r", 1)
            assert len(await first) == 150

    asyncio.run(main())


def test_a_refusal_comes_before_anything_else() -> None:
    async def main() -> None:
        async with running() as engine:
            with pytest.raises(RequestError) as caught:
                await collect(engine, "r", 500)
            assert caught.value.field == "max_tokens"
            await idle(engine)

    asyncio.run(main())


class DyingScheduler(FakeExecutor):
    """Returns what no scheduler can take in."""

    def execute(self, step: Step) -> StepResult:
        return StepResult({})


def test_when_the_engine_dies_nobody_hangs() -> None:
    async def main() -> None:
        async with running(DyingScheduler(64, 4)) as engine:
            with pytest.raises(EngineError, match="died"):
                await asyncio.wait_for(collect(engine, "a", 5), 10)
            assert not engine.healthy
            with pytest.raises(EngineError):
                await asyncio.wait_for(collect(engine, "b", 5), 10)

    asyncio.run(main())


def test_stopping_ends_what_runs() -> None:
    async def main() -> None:
        async with running(SlowExecutor(64, 4)) as engine:
            task = asyncio.create_task(collect(engine, "r", 190))
            while "r" not in engine._delivery.collectors:
                await asyncio.sleep(0)
            await engine.stop()
            with pytest.raises(EngineError, match="stopped"):
                await asyncio.wait_for(task, 10)

    asyncio.run(main())


class Counting:
    """A tokenizer that keeps the texts that it was given, and can be made to wait."""

    longest_token, own_texts = TOKENIZER.longest_token, TOKENIZER.own_texts
    special_ids = TOKENIZER.special_ids
    end_ids = TOKENIZER.end_ids
    count, decode = staticmethod(TOKENIZER.count), staticmethod(TOKENIZER.decode)
    apply_chat_template = staticmethod(TOKENIZER.apply_chat_template)

    def __init__(self) -> None:
        self.given: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.given.append(text)
        assert self.gate.wait(10)
        return TOKENIZER.encode(text, add_special_tokens=add_special_tokens)


@asynccontextmanager
async def counting() -> AsyncIterator[tuple[AsyncEngine, Counting]]:
    engine, tokenizer = make_engine(FakeExecutor(64, 4)), Counting()
    engine.input_processor = InputProcessor(
        tokenizer, ModelOutputs(4096), max_model_len=200, seed=0
    )
    served = AsyncEngine(engine)
    served.start()
    try:
        yield served, tokenizer
    finally:
        tokenizer.gate.set()
        await asyncio.wait_for(served.stop(), 10)


async def run_out(steps: Deltas) -> None:
    async for _ in steps:
        pass


def test_params_are_prepared_once_for_all_prompts() -> None:
    async def main() -> None:
        async with counting() as (engine, tokenizer):
            params = SamplingParams(max_tokens=2, bad_words=["fox"])
            await run_out(engine.generate({str(i): f"text {i}" for i in range(4)}, params))
            assert sorted(tokenizer.given) == sorted(
                ["fox", " fox", "text 0", "text 1", "text 2", "text 3"]
            )

    asyncio.run(main())


def test_one_prompt_that_is_too_long_keeps_all_from_being_tokenized() -> None:
    async def main() -> None:
        async with counting() as (engine, tokenizer):
            with pytest.raises(RequestError) as caught:
                await run_out(engine.generate({"a": "a", "b": "b" * 10**6}, SamplingParams()))
            assert caught.value.field == "prompt"
            with pytest.raises(RequestError, match="input has 1000000 characters"):
                await engine.append_to_session("s", "b" * 10**6)
            chat = [{"role": "user", "content": "b" * 10**6}]
            with pytest.raises(RequestError, match="messages has"):
                await engine.begin_chat(chat, {})
            assert tokenizer.given == []

    asyncio.run(main())


def test_of_many_prompts_the_loop_hears_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's lock is let go of too briefly between two short ones."""

    async def main() -> None:
        async with counting() as (engine, tokenizer):
            run, portions = engine._preparation.run, [0]

            def counted(size: int, prepare: Callable[[], _T]) -> Awaitable[_T]:
                portions.append(len(tokenizer.given))
                return run(size, prepare)

            monkeypatch.setattr(engine._preparation, "run", counted)
            prompts = {str(i): f"text {i}" for i in range(200)}
            await run_out(engine.generate(prompts, SamplingParams(max_tokens=1)))
            assert tokenizer.given == [*prompts.values()]
            portions.append(200)
            assert max(later - one for one, later in pairwise(portions)) == 64
            assert len(portions) == 2 + 4, "each costs a turn of a thread"

    asyncio.run(main())


def test_the_prompts_of_who_has_left_are_not_tokenized() -> None:
    async def main() -> None:
        async with counting() as (engine, tokenizer):
            tokenizer.gate.clear()
            prompts = {str(i): f"text {i}" for i in range(50)}
            task = asyncio.create_task(run_out(engine.generate(prompts, SamplingParams())))
            while not tokenizer.given:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            tokenizer.gate.set()
            await run_out(engine.generate({"later": "later"}, SamplingParams(max_tokens=1)))
            assert tokenizer.given == ["text 0", "later"]
            await idle(engine)

    asyncio.run(main())


def test_a_stopped_engine_says_so_at_once() -> None:
    async def main() -> None:
        async with counting() as (engine, tokenizer):
            await engine.stop()
            with pytest.raises(EngineError, match="stopped"):
                await run_out(engine.generate({"a": "a"}, SamplingParams()))
            assert tokenizer.given == []

    asyncio.run(main())
