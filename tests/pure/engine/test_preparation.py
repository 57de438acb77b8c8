"""The threads in which texts become tokens: who waits for whom, and who is not begun."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from quire.core.errors import EngineError, RequestError
from quire.engine import thread
from quire.engine.thread import LONG, PreparationThreads
from quire.kernels.heap import give_memory_back

PATIENCE = 60.0


class Gate:
    """Something to prepare that lasts until it is let through."""

    def __init__(self) -> None:
        self.begun, self.let = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.let.wait(PATIENCE)
        return "done"


@asynccontextmanager
async def threads() -> AsyncIterator[PreparationThreads]:
    made = PreparationThreads()
    try:
        yield made
    finally:
        made.close()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("this never became true")


def test_waiting_for_grammars_holds_up_nothing_else() -> None:
    async def main() -> None:
        async with threads() as pool:
            gates, left = [Gate() for _ in range(thread.WAITING)], Gate()
            busy = [asyncio.create_task(pool.compile(gate)) for gate in gates]
            await until(lambda: all(gate.begun.is_set() for gate in gates))
            assert await asyncio.wait_for(pool.run(1, lambda: "short"), PATIENCE) == "short"
            gone = asyncio.create_task(pool.compile(left))
            await asyncio.sleep(0.01)
            gone.cancel()
            await asyncio.wait([gone])
            for gate in gates:
                gate.let.set()
            assert await asyncio.gather(*busy) == ["done"] * len(gates)
            assert await pool.compile(lambda: "next") == "next"
            assert not left.begun.is_set(), "nobody waits for it"
            with pytest.raises(RequestError, match="bad"):
                await pool.compile(raising)

    def raising() -> None:
        raise RequestError("bad", "structured_outputs")

    asyncio.run(main())


def test_a_short_input_waits_for_no_long_one() -> None:
    async def main() -> None:
        async with threads() as pool:
            gates = [Gate() for _ in range(5)]
            long = [asyncio.create_task(pool.run(LONG + 1, gate)) for gate in gates]
            await until(gates[0].begun.is_set)
            assert await asyncio.wait_for(pool.run(LONG, lambda: "short"), PATIENCE) == "short"
            assert not any(gate.begun.is_set() for gate in gates[1:]), "long ones run together"
            for gate in gates:
                gate.let.set()
            assert await asyncio.gather(*long) == ["done"] * 5

    asyncio.run(main())


@pytest.mark.parametrize("size", [LONG, LONG + 1])
def test_what_is_cancelled_before_its_turn_is_not_begun(size: int) -> None:
    async def main() -> None:
        async with threads() as pool:
            gates, begun = [Gate(), Gate()], []
            busy = [asyncio.create_task(pool.run(size, gate)) for gate in gates]
            await until(gates[0].begun.is_set)
            waiting = [
                asyncio.create_task(pool.run(size, lambda n=n: begun.append(n))) for n in range(3)
            ]
            await asyncio.sleep(0)
            waiting[1].cancel()
            await asyncio.sleep(0)
            for gate in gates:
                gate.let.set()
            await asyncio.gather(*busy, waiting[0], waiting[2])
            assert begun == [0, 2]

    asyncio.run(main())


def test_after_the_end_nothing_is_prepared_and_nobody_hangs() -> None:
    async def main() -> None:
        async with threads() as pool:
            gate, begun = Gate(), []
            running = asyncio.create_task(pool.run(LONG + 1, gate))
            await until(gate.begun.is_set)
            waiting = asyncio.create_task(pool.run(LONG + 1, lambda: begun.append(1)))
            await asyncio.sleep(0)
            pool.close()
            pool.close()
            gate.let.set()
            assert await running == "done"
            with pytest.raises(EngineError, match="stopped"):
                await waiting
            with pytest.raises(EngineError, match="stopped"):
                await pool.run(1, lambda: begun.append(2))
            assert begun == []

    asyncio.run(main())


def test_an_error_comes_to_who_asked() -> None:
    async def main() -> None:
        async with threads() as pool:
            with pytest.raises(ZeroDivisionError):
                await pool.run(1, lambda: 1 // 0)

    asyncio.run(main())


def test_memory_is_given_back_once_after_long_inputs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[str] = []
    monkeypatch.setattr(thread, "_REST", 0.05)
    monkeypatch.setattr(
        thread, "give_memory_back", lambda: times.append(threading.current_thread().name)
    )

    async def main() -> None:
        async with threads() as pool:
            await pool.run(LONG, str)
            await asyncio.sleep(0.1)
            assert times == []
            await asyncio.gather(*(pool.run(LONG + 1, str) for _ in range(5)))
            await until(lambda: bool(times))
            await asyncio.sleep(0.1)
            assert len(times) == 1
            assert times[0].startswith("quire-long"), "the event loop waits for it"
            await pool.run(LONG + 1, str)
            await until(lambda: len(times) == 2)

    asyncio.run(main())


def test_giving_memory_back_does_no_harm_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    give_memory_back()
    monkeypatch.setattr("sys.platform", "darwin")
    give_memory_back()
