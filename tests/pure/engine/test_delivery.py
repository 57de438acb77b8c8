"""When the tasks that wait for deltas are woken."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest
from world.loop import VirtualLoop

from quire.core.errors import EngineError
from quire.core.protocol import TokenLogprobs
from quire.engine.delivery import GATHERED, Delivery, OutputCollector
from quire.engine.outputs import Delta, TokenLogprobTable
from quire.text.text_tokens import TextToken
from quire.text.tokenizer import TokenTexts


def delta(request_id: str, token: int = 5, *, first: bool = False, end: bool = False) -> Delta:
    return Delta(
        request_id, 0, "", (token,), None, 0.0, first, finish_reason="stop" if end else None
    )


class Tasks:
    """Tasks that wait for deltas, and what each took, when."""

    def __init__(self, *names: str, interval: int | None = 1) -> None:
        self.delivery = Delivery()
        self.loop = asyncio.get_running_loop()
        self.delivery.start(self.loop)
        self.taken: dict[str, list[tuple[float, list[int]]]] = {name: [] for name in names}
        for name in names:
            self.delivery.collectors[name] = OutputCollector(interval)
        self._tasks = [self.loop.create_task(self._read(name)) for name in names]

    async def _read(self, name: str) -> None:
        while True:
            deltas = await self.delivery.collectors[name].take()
            tokens = [token for delta in deltas for token in delta.token_ids]
            self.taken[name].append((round(self.loop.time(), 4), tokens))

    async def until(self, moment: float) -> None:
        await asyncio.sleep(moment - self.loop.time())

    async def end(self) -> list[object]:
        self.delivery.fail_all(EngineError("over"))
        return await asyncio.gather(*self._tasks, return_exceptions=True)


def run(main: Coroutine[None, None, None]) -> None:
    loop = VirtualLoop(lambda: 0.0)
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()


def test_what_short_steps_give_comes_together_but_a_beginning_and_an_end_at_once() -> None:
    async def main() -> None:
        tasks = Tasks("a", "b")
        put, tick = tasks.delivery.put, GATHERED / 10
        put([delta("a", 1, first=True)])
        await tasks.until(tick)
        put([delta("a", 2)])
        await tasks.until(2 * tick)
        put([delta("a", 3), delta("b", 1, first=True), delta("nobody", 9)])
        await tasks.until(3 * tick)
        put([delta("a", 4), delta("b", 2)])
        await tasks.until(4 * tick)
        put([delta("b", 3, end=True)])
        await tasks.until(3 * GATHERED)
        put([delta("a", 5)])  # nothing came for so long that it need not wait
        await tasks.until(4 * GATHERED)
        assert tasks.taken["a"] == [(0.0, [1]), (GATHERED, [2, 3, 4]), (3 * GATHERED, [5])]
        assert tasks.taken["b"] == [(2 * tick, [1]), (4 * tick, [2, 3])]
        await tasks.end()

    run(main())


def test_steps_that_are_not_short_are_not_waited_with() -> None:
    async def main() -> None:
        tasks = Tasks("a")
        moments = [round(number * 1.2 * GATHERED, 4) for number in range(5)]
        for token, moment in enumerate(moments):
            await tasks.until(moment)
            tasks.delivery.put([delta("a", token)])
        await tasks.until(1.0)
        assert tasks.taken["a"] == [(moment, [token]) for token, moment in enumerate(moments)]
        await tasks.end()

    run(main())


def test_what_has_come_is_given_before_the_failure_that_ends_all() -> None:
    async def main() -> None:
        tasks = Tasks("a", "b")
        await tasks.until(GATHERED)
        tasks.delivery.put([delta("a", 1)])
        await tasks.until(1.1 * GATHERED)
        tasks.delivery.put([delta("a", 2), delta("b", 1)])
        failures = await tasks.end()
        assert [str(failure) for failure in failures] == ["over", "over"]
        assert [tokens for _, tokens in tasks.taken["a"]] == [[1], [2]]
        assert [tokens for _, tokens in tasks.taken["b"]] == [[1]]

    run(main())


@pytest.mark.parametrize(("scored", "at_once"), [(False, 64), (True, 8)])
def test_a_turn_wakes_tasks_for_what_can_be_written_soon(scored: bool, at_once: int) -> None:
    async def main() -> None:
        names = [str(number) for number in range(2 * at_once + 2)]
        tasks = Tasks(*names)
        token = TextToken(TokenTexts(lambda token_id: b"5", frozenset()), 5)
        tables = (TokenLogprobTable(TokenLogprobs(-1.0, 1, ()), token),) if scored else None
        await asyncio.sleep(0)
        tasks.delivery.put([delta(name)._replace(logprobs=tables) for name in names])
        woken = []
        for _ in range(6):
            woken.append(sum(map(len, tasks.taken.values())))
            await asyncio.sleep(0)
        assert woken == sorted(woken) and {0, at_once, 2 * at_once, len(names)} == {*woken}
        await tasks.end()

    run(main())
