"""The thread in which an engine lives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from enum import Enum
from queue import Empty, SimpleQueue

from quire.core.errors import RankError
from quire.engine.engine import Engine
from quire.engine.outputs import Delta

logger = logging.getLogger(__name__)

Command = Callable[[], None]
_TICK = 0.01
_QUIET = 1.0  # seconds without work, after which there is time to look into the books


class Turn(Enum):
    STEPPED = "stepped"
    IDLE = "idle"  # there is nothing to do
    ENDED = "ended"  # it was told to


class EngineThread:
    """Carries out commands and steps an engine, one after the other, in a thread of its own.

    took_step: told in that thread what each step gave.
    ended: told in it why it ends: because of an exception, or (None) because it was told to.
    """

    def __init__(
        self,
        engine: Engine,
        took_step: Callable[[list[Delta]], None],
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self._engine = engine
        self._took_step = took_step
        self._ended = ended
        self._commands: SimpleQueue[Command | None] = SimpleQueue()
        self._worked = False  # since the last audit
        self._thread = threading.Thread(target=self._run, name="quire-engine", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def put(self, command: Command | None) -> None:
        """To be carried out between two steps. None: end after the step under way."""
        self._commands.put(command)

    def fail(self, error: BaseException) -> None:
        """End with this, be there something to do or not."""

        def command() -> None:
            raise error

        self._commands.put(command)

    async def join(self) -> None:
        while self._thread.is_alive():  # a thread that waited could not be told to stop waiting
            await asyncio.sleep(_TICK)

    def turn(self, *, wait: bool) -> Turn:
        """Carry out what commands there are, then take a step, if there is work.

        wait: for a command, if there is neither.
        """
        while not (self._commands.empty() and self._engine.has_work):
            try:
                command = self._commands.get(wait, _QUIET if self._worked else None)
            except Empty:
                if not wait:
                    return Turn.IDLE
                self._engine.audit()
                self._worked = False
                continue
            if command is None:
                self._engine.put_away()
                return Turn.ENDED
            command()
        self._worked = True
        self._took_step(self._engine.step())
        return Turn.STEPPED

    def wind_up(self, failure: BaseException | None) -> None:
        """Say that it is over. Nobody may wait for an answer that never comes."""
        self._ended(failure)
        while not self._commands.empty():
            command = self._commands.get()
            if command is not None:
                with contextlib.suppress(
                    BaseException
                ):  # the engine's state is anybody's guess now
                    command()

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while self.turn(wait=True) is not Turn.ENDED:
                pass
        except RankError as error:  # which says it all
            logger.critical("the engine died: %s", error)
            failure = error
        except BaseException as error:  # a library's SystemExit too: nobody may wait in vain
            logger.exception("the engine died")
            failure = error
        self.wind_up(failure)
