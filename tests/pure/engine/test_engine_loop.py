"""An engine in an event loop of its own: callers of several loops, and what becomes of them."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from itertools import count
from pathlib import Path

import pytest

import quire
from quire.core.errors import EngineError, RequestAbortedError, RequestError
from quire.core.memory import PagedAllocator
from quire.core.protocol import Step, StepResult
from quire.core.scheduling import BatchLimits, Scheduler
from quire.engine.async_engine import Deltas
from quire.engine.engine import Engine
from quire.engine.engine_loop import EngineLoop
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.text.params import SamplingParams
from quire.text.tokenizer import load_tokenizer
from support.fake_model import FakeExecutor

TOKENIZER = load_tokenizer(Path(quire.__file__).parent / "models/demo")
LONG, NUMBERS = 190, count()


class Gated(FakeExecutor):
    """Waits before each step until it is let on, and for some seconds."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(64, 4)
        self.seconds = seconds
        self.gate = threading.Event()
        self.gate.set()
        self.steps = 0

    def execute(self, step: Step) -> StepResult:
        assert self.gate.wait(10)
        time.sleep(self.seconds)
        self.steps += 1
        return super().execute(step)


@contextmanager
def running(executor: FakeExecutor | None = None) -> Iterator[EngineLoop]:
    scheduler = Scheduler(PagedAllocator(64, 4), BatchLimits(8, 32))
    processor = InputProcessor(TOKENIZER, ModelOutputs(4096), max_model_len=200, seed=0)
    loop = EngineLoop(Engine(scheduler, executor or FakeExecutor(64, 4), processor))
    try:
        yield loop
    finally:
        loop.close()
    assert not loop._thread.is_alive()
    while loop.engine.at_work:  # who prepares requests ends a moment after its last one
        time.sleep(0.001)


def deltas(loop: EngineLoop, name: str, tokens: int) -> Deltas:
    params = SamplingParams(max_tokens=tokens, seed=1, ignore_eos=True)
    own = f"{name}-{next(NUMBERS)}"
    return loop.stream(name, lambda: loop.engine.generate({own: [1, 2, 3]}, params))


async def collect(loop: EngineLoop, name: str, tokens: int = 20) -> list[int]:
    steps = deltas(loop, name, tokens)
    return [token async for step in steps for delta in step for token in delta.token_ids]


def is_idle(loop: EngineLoop) -> bool:
    engine = loop.engine.engine
    usage = engine.scheduler.allocator.usage()
    return not engine.has_work and usage.cached + usage.free == usage.capacity


async def idle(loop: EngineLoop) -> None:
    for _ in range(2000):
        if is_idle(loop):
            return
        await asyncio.sleep(0.005)
    raise AssertionError("its blocks are held on")


async def together(loop: EngineLoop, *names: str) -> list[list[int]]:
    return list(await asyncio.gather(*(collect(loop, name) for name in names)))


def test_one_loop_after_the_other_and_two_at_once() -> None:
    with running() as loop:
        (alone,) = asyncio.run(together(loop, "alone"))
        assert len(alone) == 20
        found: list[list[int]] = []

        def in_its_own(number: int) -> None:
            found.extend(asyncio.run(together(loop, f"{number}a", f"{number}b")))

        threads = [threading.Thread(target=in_its_own, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert found == [alone] * 6
        asyncio.run(idle(loop))


Leave = Callable[[Deltas], Awaitable[None]]


async def leave_by_closing(steps: Deltas) -> None:
    async with aclosing(steps):
        await anext(steps)


async def leave_while_it_waits(steps: Deltas) -> None:
    async def read() -> None:
        async for _ in steps:
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave_at_work(steps: Deltas) -> None:
    """Cancelled between two deltas, where the iterator itself hears nothing of it."""

    async def read() -> None:
        async for _ in steps:
            await asyncio.sleep(60)

    task = asyncio.create_task(read())
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave_by_forgetting(steps: Deltas) -> None:
    async for _ in steps:
        break


@pytest.mark.parametrize(
    "leave", [leave_by_closing, leave_while_it_waits, leave_at_work, leave_by_forgetting]
)
def test_whoever_leaves_frees_the_blocks(leave: Leave) -> None:
    executor = Gated(0.003)

    async def main() -> None:
        await leave(deltas(loop, "r", LONG))
        gc.collect()
        await idle(loop)
        assert executor.steps < LONG

    with running(executor) as loop:
        asyncio.run(main())
        assert len(asyncio.run(collect(loop, "r"))) == 20, "the name is free again"


def test_an_iterator_that_nobody_asks_runs_nothing() -> None:
    async def main() -> None:
        steps = deltas(loop, "r", LONG)
        await asyncio.sleep(0.02)
        assert loop.engine.engine.stats.num_steps == 0
        await steps.aclose()

    with running() as loop:
        asyncio.run(main())


def test_a_loop_that_is_gone_ends_its_requests() -> None:
    executor = Gated()

    async def begin() -> Deltas:
        steps = deltas(loop, "r", LONG)
        await anext(steps)
        executor.gate.clear()
        return steps

    with running(executor) as loop:
        own = asyncio.new_event_loop()
        steps = own.run_until_complete(begin())
        own.close()
        executor.gate.set()
        asyncio.run(idle(loop))
        assert executor.steps < LONG
        del steps


def test_an_aborted_request_says_so_and_the_others_go_on() -> None:
    executor = Gated()

    async def main() -> None:
        one, other = (asyncio.create_task(collect(loop, name, LONG)) for name in "ab")
        while executor.steps == 0:
            await asyncio.sleep(0.005)
        executor.gate.clear()
        await loop.abort("a")
        await loop.abort("unknown")
        executor.gate.set()
        with pytest.raises(RequestAbortedError):
            await one
        assert len(await other) == LONG

    with running(executor) as loop:
        asyncio.run(main())


def test_a_name_in_use_is_refused_and_its_owner_unharmed() -> None:
    executor = Gated()

    async def main() -> None:
        first = asyncio.create_task(collect(loop, "r", LONG))
        while executor.steps == 0:
            await asyncio.sleep(0.005)
        executor.gate.clear()
        with pytest.raises(RequestError, match="already running") as caught:
            await collect(loop, "r", 1)
        assert caught.value.field == "request_id"
        executor.gate.set()
        assert len(await first) == LONG

    with running(executor) as loop:
        asyncio.run(main())


def test_closing_ends_whoever_waits_and_refuses_the_next() -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(collect(loop, str(i), LONG)) for i in range(3)]
        while executor.steps == 0:
            await asyncio.sleep(0.005)
        await asyncio.to_thread(loop.close)
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(ended, EngineError)
        with pytest.raises(EngineError, match="has been closed"):
            await collect(loop, "late")
        with pytest.raises(EngineError, match="has been closed"):
            await asyncio.to_thread(loop.change, lambda: None)

    executor = Gated()
    with running(executor) as loop:
        asyncio.run(main())


class Dying(FakeExecutor):
    """Returns what no scheduler can take in."""

    def execute(self, step: Step) -> StepResult:
        return StepResult({})


def test_when_the_engine_dies_nobody_hangs() -> None:
    async def main() -> None:
        for name in "ab":
            with pytest.raises(EngineError, match="died"):
                await asyncio.wait_for(collect(loop, name), 10)
        assert not loop.healthy

    with running(Dying(64, 4)) as loop:
        asyncio.run(main())


def test_a_forked_process_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as loop:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(EngineError, match="was forked"):
            asyncio.run(collect(loop, "r"))
        loop.close()
        monkeypatch.undo()
        assert loop.healthy
