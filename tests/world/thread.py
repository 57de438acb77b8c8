"""The engine's thread, as a series of moments in a virtual loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.engine.engine import Engine
from quire.engine.outputs import Delta
from quire.engine.thread import Command, EngineThread, Turn


class VirtualThread(EngineThread):
    """Turns that follow one another in virtual time.

    step_seconds: how long the step takes that begins now. after_turn: called after each.
    """

    def __init__(
        self,
        engine: Engine,
        took_step: Callable[[list[Delta]], None],
        ended: Callable[[Exception | None], None],
        step_seconds: Callable[[], float],
        after_turn: Callable[[], None],
    ) -> None:
        super().__init__(engine, took_step, ended)
        self._step_seconds = step_seconds
        self._after_turn = after_turn
        self._started = self._awake = False
        self._over = asyncio.Event()

    @property
    def alive(self) -> bool:
        return self._started and not self._over.is_set()

    def start(self) -> None:
        self._started = True

    def put(self, command: Command | None) -> None:
        super().put(command)
        if not self._awake and self.alive:
            self._wake()

    async def join(self) -> None:
        await self._over.wait()

    def _wake(self) -> None:
        self._awake = True
        asyncio.get_running_loop().call_later(self._step_seconds(), self._take_turn)

    def _take_turn(self) -> None:
        self._awake = False
        failure, turn = None, Turn.ENDED
        try:
            turn = self.turn(wait=False)
        except Exception as error:
            failure = error
        if turn is Turn.ENDED:
            self._over.set()
            self.wind_up(failure)
        elif turn is Turn.STEPPED:
            self._wake()
        self._after_turn()
