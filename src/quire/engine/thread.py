"""The threads beside an event loop: the one in which an engine lives, and how what it gives gets to
the tasks of the loop; and those in which texts become token ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from quire.core.errors import EngineError, RankError
from quire.engine.engine import Engine
from quire.engine.outputs import Delta, joined
from quire.kernels.heap import give_memory_back

logger = logging.getLogger(__name__)

Command = Callable[[], None]
_TICK = 0.01
GATHERED = 0.01  # seconds
_HANDED_OUT = 64  # deltas, by weight, for which tasks are woken in a turn of the event loop
_SCORED = 8  # deltas without log-probabilities that are written in the time of one with some
LONG = 2**15  # characters or tokens; what is longer is prepared apart
WAITING = 16  # threads that wait for other processes: who takes long there keeps few waiting
_REST = 1.0  # seconds from a long input to giving memory back, once for all that come meanwhile
_QUIET = 1.0  # seconds without work, after which there is time to check memory's counters

_T = TypeVar("_T")


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
        """Queue a command for between two steps. None: end after the step under way."""
        self._commands.put(command)

    def fail(self, error: BaseException) -> None:
        """End the thread with this error."""

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
        """Tell all who wait that the thread has ended."""
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


@dataclass(slots=True)
class _Held:
    """The deltas of one output that were not handed out yet."""

    deltas: list[Delta] = field(default_factory=list)
    num_tokens: int = 0


class OutputCollector:
    """The deltas of one or several requests. The task is woken once for all that came together.

    interval: tokens of each output that are gathered to one delta, but its first token and its
        end are given at once; None: nothing is given before the end.
    weight: how much there is to write, in deltas without log-probabilities.
    """

    def __init__(self, interval: int | None = 1) -> None:
        self._interval = interval
        self._held: dict[tuple[str, int], _Held] = {}
        self._deltas: list[Delta] = []
        self.weight = 0
        self._failure: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None  # an Event would cost twice as much

    def put(self, delta: Delta) -> bool:
        """Whether there is something to take now."""
        if self._interval == 1 or delta.progress:
            self._deltas.append(delta)
            self.weight += 1 if delta.logprobs is None else _SCORED
        else:
            self._gather(delta)
        return len(self._deltas) > 0

    def wake(self) -> None:
        """Have the task take what there is, if it waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, failure: EngineError) -> None:
        """End with ``failure`` after what has come."""
        self._failure = failure
        self.wake()

    async def take(self) -> list[Delta]:
        """All that has come since the last time; waits for it. Raises the failure after that."""
        if not self._deltas and self._failure is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        deltas, self._deltas, self.weight = self._deltas, [], 0
        if not deltas and self._failure is not None:
            raise self._failure
        return deltas

    def _gather(self, delta: Delta) -> None:
        output = delta.request_id, delta.index
        held = self._held.setdefault(output, _Held())
        held.deltas.append(delta)
        held.num_tokens += len(delta.token_ids)
        if delta.final is not None:  # which ends all of the request's outputs
            for other in [one for one in self._held if one[0] == delta.request_id]:
                if other != output:
                    self._give(other)
        if delta.finish_reason is not None or (
            self._interval is not None and (delta.first or held.num_tokens >= self._interval)
        ):
            self._give(output)

    def _give(self, output: tuple[str, int]) -> None:
        delta = joined(self._held.pop(output).deltas)
        self._deltas.append(delta)
        self.weight += 1 if delta.logprobs is None else _SCORED


class Delivery:
    """Hands deltas to the collectors of those who wait for them, by request id.

    A task is woken at once for the first token of an output and for its end, and otherwise once
    in ``GATHERED`` seconds at most: to wake it and to write to its client costs as much for one
    token as for several, and so does each time that the loop and the engine's thread pass
    Python's lock to each other. Where steps take longer than that, nothing waits.

    ``put`` is called in the engine's thread, all else in the event loop's.
    """

    def __init__(self) -> None:
        self.collectors: dict[str, OutputCollector] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._steps: deque[list[Delta]] = deque()  # what they gave; the one thing both touch
        self._gathering = False  # a timer will look at what has come by then
        self._waiting: dict[OutputCollector, None] = {}  # to be woken by it
        self._due: deque[OutputCollector] = deque()  # to be woken now

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def put(self, deltas: list[Delta]) -> None:
        """Take the deltas of a step."""
        self._steps.append(deltas)
        urgent = not self._gathering
        for delta in deltas:
            urgent = urgent or delta.first or delta.finish_reason is not None
        if urgent:
            self.call_soon(self._take)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Have the event loop call it; from any thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # it is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback)

    def fail_all(self, failure: EngineError) -> None:
        """End with ``failure`` after what has come."""
        self._take()
        for collector in self.collectors.values():
            collector.fail(failure)

    def _take(self) -> None:
        """Give all that has come to the collectors, and wake those that need not wait."""
        if not (self._steps or self._waiting):
            return
        busy = bool(self._due)
        while self._steps:
            for delta in self._steps.popleft():
                collector = self.collectors.get(delta.request_id)
                if collector is None or not collector.put(delta):
                    continue  # its caller has left, or waits for more
                if delta.first or delta.finish_reason is not None:
                    self._waiting.pop(collector, None)
                    self._due.append(collector)
                else:
                    self._waiting[collector] = None
        if not self._gathering:
            self._gathering = True
            asyncio.get_running_loop().call_later(GATHERED, self._gathered)
            self._due.extend(self._waiting)
            self._waiting.clear()
        if not busy:
            self._hand_out()

    def _gathered(self) -> None:
        self._gathering = False  # before it looks: what comes from now on calls for itself
        if self._steps or self._waiting:
            self._take()

    def _hand_out(self) -> None:
        """To some tasks, which have their turn before the next ones are woken; so do others."""
        room = _HANDED_OUT
        while self._due and room > 0:
            collector = self._due.popleft()
            room -= collector.weight
            collector.wake()
        if self._due:
            asyncio.get_running_loop().call_soon(self._hand_out)


class PreparationThreads:
    """Prepares inputs a few at a time, beside the engine and the event loop.

    Short inputs have threads of their own, so that they wait for no long one. Long ones come one
    after the other, which bounds the memory that they take; soon after, it is given back. An input
    whose task is cancelled before its turn is not prepared.
    """

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(2, "quire-short")
        self._long = ThreadPoolExecutor(1, "quire-long")
        self._grammars = ThreadPoolExecutor(WAITING, "quire-grammar")
        self._giving_back: asyncio.TimerHandle | None = None
        self._closed = False
        self._under_way: set[Callable[[], object]] = set()

    async def run(self, size: int, prepare: Callable[[], _T]) -> _T:
        """What ``prepare`` returns or raises in one of the threads; EngineError once closed.

        size: characters or tokens of its input.
        """
        loop = asyncio.get_running_loop()
        unless_closed = partial(self._unless_closed, prepare)
        if self._closed:
            return unless_closed()
        if size <= LONG:
            return await loop.run_in_executor(self._short, unless_closed)
        try:
            return await loop.run_in_executor(self._long, unless_closed)
        finally:
            self.give_back_soon()

    async def compile(self, prepare: Callable[[], _T]) -> _T:
        """The same for what waits for a grammar to be compiled, which another process does."""
        unless_closed = partial(self._unless_closed, prepare)
        if self._closed:
            return unless_closed()
        return await asyncio.get_running_loop().run_in_executor(self._grammars, unless_closed)

    def give_back_soon(self) -> None:
        """Return free memory to the system, once for all that ask within a second."""
        if self._giving_back is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._giving_back = loop.call_later(_REST, self._give_back)

    def close(self) -> None:
        """Prepare no more, and end the threads after what they are at."""
        self._closed = True
        if self._giving_back is not None:
            self._giving_back.cancel()
        for lane in (self._short, self._long, self._grammars):
            lane.shutdown(wait=False, cancel_futures=lane is self._grammars)

    @property
    def busy(self) -> bool:
        """Whether an input is being prepared."""
        return bool(self._under_way)

    def _unless_closed(self, prepare: Callable[[], _T]) -> _T:
        if self._closed:
            raise EngineError("the engine has been stopped")
        self._under_way.add(prepare)
        try:
            return prepare()
        finally:
            self._under_way.discard(prepare)

    def _give_back(self) -> None:
        self._giving_back = None
        self._long.submit(give_memory_back)  # after the inputs that wait there
