"""The engine in a thread of its own, its requests as async iterators."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from quire.engine.engine import Engine
from quire.engine.intake import Prompt
from quire.engine.outputs import Delta
from quire.errors import EngineError, RequestError
from quire.scheduling import SamplingParams

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_Command = Callable[[], None]
_Inbox = asyncio.Queue[Delta | EngineError]


class AsyncEngine:
    """Runs an Engine in a thread; every call on the engine goes through its command queue.

    on_step: called in that thread after each step, with what the step gave.
    """

    def __init__(self, engine: Engine, on_step: Callable[[list[Delta]], None]) -> None:
        self.engine = engine
        self._on_step = on_step
        self._commands: SimpleQueue[_Command | None] = SimpleQueue()
        self._inboxes: dict[str, _Inbox] = {}  # touched by the event loop only
        self._thread = threading.Thread(target=self._run, name="quire-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: EngineError | None = None

    @property
    def healthy(self) -> bool:
        return self._thread.is_alive() and self._failure is None

    def start(self) -> None:
        """Start the thread. Call it from the event loop that will use the engine."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after its current step; running requests end with an EngineError."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    async def generate(
        self, request_id: str, prompt: Prompt, params: SamplingParams
    ) -> AsyncGenerator[Delta, None]:
        """What each step adds to the request, the last delta holding its RequestOutput.

        Raises RequestError before the first delta if the request is refused. Closing the
        iterator, or cancelling the task that awaits it, frees the request's blocks before the
        next step.
        """
        arrival = self.engine.clock()
        prepare = partial(self.engine.intake.prepare, request_id, prompt, params, arrival)
        prepared = await asyncio.to_thread(prepare)
        async with aclosing(
            self._deltas(request_id, lambda: self.engine.submit(prepared))
        ) as deltas:
            async for delta in deltas:
                yield delta

    async def generate_turn(
        self, request_id: str, session_id: str, params: SamplingParams, priority: int = 0
    ) -> AsyncGenerator[Delta, None]:
        """The next turn of a session, as ``generate``. Closed early, what has come stays in it."""
        submit = partial(self.engine.add_turn, request_id, session_id, params, priority)
        async with aclosing(self._deltas(request_id, submit)) as deltas:
            async for delta in deltas:
                yield delta

    # -- sessions: see SessionDesk ---------------------------------------------------------

    async def open_session(self, session_id: str, cache_salt: str = "") -> None:
        await self.call(partial(self.engine.sessions.open, session_id, cache_salt))

    async def append(self, session_id: str, given: str | Sequence[int]) -> None:
        desk = self.engine.sessions
        token_ids = await asyncio.to_thread(desk.tokens, session_id, given)
        await self.call(partial(desk.append, session_id, token_ids))

    async def hard_cut(self, session_id: str) -> None:
        await self.call(partial(self.engine.sessions.hard_cut, session_id))

    async def recompute(self, session_id: str, last_n: int) -> None:
        await self.call(partial(self.engine.sessions.recompute, session_id, last_n))

    async def close_session(self, session_id: str) -> None:
        await self.call(partial(self.engine.sessions.close, session_id))

    async def call(self, act: Callable[[], _T]) -> _T:
        """What ``act`` returns or raises in the engine's thread, between two steps."""
        done: Future[_T] = Future()

        def command() -> None:
            try:
                result = act()
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        self._commands.put(command)
        if self._failure is not None:  # set before the dying thread empties its queue
            raise self._failure
        return await asyncio.shield(asyncio.wrap_future(done))

    async def _deltas(
        self, request_id: str, submit: Callable[[], None]
    ) -> AsyncGenerator[Delta, None]:
        if request_id in self._inboxes:
            raise RequestError(f"request {request_id} is already running", "request_id")
        inbox: _Inbox = asyncio.Queue()
        self._inboxes[request_id] = inbox
        finished = False
        try:
            await self.call(submit)
            while not finished:
                delta = await inbox.get()
                if isinstance(delta, EngineError):
                    raise delta
                if delta.finish_reason == "error":
                    raise EngineError(str(delta.stop_reason))
                finished = delta.final is not None
                yield delta
        finally:
            del self._inboxes[request_id]
            if not finished:
                self._commands.put(lambda: self._abort(request_id))

    def _abort(self, request_id: str) -> None:
        self.engine.abort(request_id)

    # -- in the engine's thread ------------------------------------------------------------

    def _run(self) -> None:
        failure = EngineError("the engine has been stopped")
        try:
            while self._obey():
                deltas = self.engine.step()
                self._on_step(deltas)
                self._call_soon(partial(self._deliver, deltas))
        except Exception as error:
            logger.exception("the engine died")
            failure = EngineError(f"the engine died: {error}")
        self._failure = failure
        while not self._commands.empty():  # nobody may wait for an answer that never comes
            command = self._commands.get()
            if command is not None:
                with contextlib.suppress(Exception):  # the engine's state is anybody's guess now
                    command()
        self._call_soon(partial(self._fail_all, failure))

    def _obey(self) -> bool:
        """Carry out commands, waiting for one if idle, until there is work. False: stop."""
        while not (self._commands.empty() and self.engine.has_work):
            command = self._commands.get()
            if command is None:
                return False
            command()
        return True

    def _call_soon(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    # -- in the event loop -----------------------------------------------------------------

    def _deliver(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            inbox = self._inboxes.get(delta.request_id)
            if inbox is not None:
                inbox.put_nowait(delta)

    def _fail_all(self, failure: EngineError) -> None:
        for inbox in self._inboxes.values():
            inbox.put_nowait(failure)
