"""The engine in a thread of its own, its requests as async iterators."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from quire.engine.engine import Engine
from quire.engine.inbox import Inbox
from quire.engine.intake import PreparedRequest, Prompt
from quire.engine.outputs import Delta
from quire.errors import EngineError, RequestError
from quire.scheduling import SamplingParams

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_Command = Callable[[], None]
Deltas = AsyncGenerator[list[Delta], None]


class AsyncEngine:
    """Runs an Engine in a thread; every call on the engine goes through its command queue.

    Its iterators give what has come since they were last asked: the deltas of one step, or of
    several if nobody has asked for so long.

    on_step: called in that thread after each step, with what the step gave.
    """

    def __init__(self, engine: Engine, on_step: Callable[[list[Delta]], None]) -> None:
        self.engine = engine
        self._on_step = on_step
        self._commands: SimpleQueue[_Command | None] = SimpleQueue()
        self._inboxes: dict[str, Inbox] = {}  # touched by the event loop only
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

    def generate(self, prompts: Mapping[str, Prompt], params: SamplingParams) -> Deltas:
        """What is added to some requests, the last delta of each holding its RequestOutput.

        prompts: by request id; ``params`` are those of all of them.

        Raises RequestError before the first delta if one of them is refused, or QueueFullError,
        before anything is done, if not all of them may wait; then none runs. A request that fails
        ends with a delta that holds its failure. Closing the iterator, or cancelling the task that
        awaits it, frees the blocks before the next step.
        """
        arrival, prepare = self.engine.clock(), self.engine.intake.prepare

        def prepare_all() -> list[PreparedRequest]:
            return [prepare(name, prompt, params, arrival) for name, prompt in prompts.items()]

        async def submit() -> None:
            prepared = await asyncio.to_thread(prepare_all)
            await self.call(partial(self._submit, prepared))

        return self._deltas(prompts, submit)

    def generate_turn(
        self,
        request_id: str,
        session_id: str,
        params: SamplingParams,
        priority: int = 0,
        client: str = "",
    ) -> Deltas:
        """The next turn of a session, as ``generate``. Closed early, what has come stays in it."""
        add = partial(self.engine.add_turn, request_id, session_id, params, priority, client)
        return self._deltas([request_id], lambda: self.call(add))

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
        self, request_ids: Collection[str], submit: Callable[[], Awaitable[None]]
    ) -> Deltas:
        for request_id in request_ids:
            if request_id in self._inboxes:
                raise RequestError(f"request {request_id} is already running", "request_id")
        reserved = contextlib.ExitStack()
        reserved.enter_context(self.engine.waiting_room.reserve(len(request_ids)))
        inbox, unfinished = Inbox(), set(request_ids)
        self._inboxes.update(dict.fromkeys(unfinished, inbox))
        try:
            with reserved:
                await submit()
            while unfinished:
                deltas = await inbox.take()
                for delta in deltas:
                    if delta.final is not None:
                        unfinished.discard(delta.request_id)
                yield deltas
        finally:
            for request_id in request_ids:
                del self._inboxes[request_id]
            if unfinished:
                self._commands.put(partial(self._abort, unfinished))

    # -- in the engine's thread ------------------------------------------------------------

    def _submit(self, requests: Sequence[PreparedRequest]) -> None:
        """Queue all of them, or none if one is refused."""
        for number, request in enumerate(requests):
            try:
                self.engine.submit(request)
            except RequestError:
                self._abort(queued.request.request_id for queued in requests[:number])
                raise

    def _abort(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self.engine.abort(request_id)

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
                inbox.put(delta)

    def _fail_all(self, failure: EngineError) -> None:
        for inbox in self._inboxes.values():
            inbox.fail(failure)
