"""An event loop in which an engine is served, for callers in any other loop or thread."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

from quire.core.errors import EngineError, RequestAbortedError, RequestError
from quire.engine.async_engine import AsyncEngine, Deltas
from quire.engine.engine import Engine
from quire.engine.outputs import Delta

_T = TypeVar("_T")
_CLOSED = "this AsyncLLM has been closed"
_FORKED = (
    "this process was forked from the one that made this AsyncLLM, and has none of its threads: "
    'make one here, or start processes with multiprocessing.get_context("spawn")'
)
_LAST_WORDS = 1.0  # seconds in which callers hear that it is over


class _End(NamedTuple):
    """The end of a stream, because of ``error`` or because all has come."""

    error: BaseException | None


class EngineLoop:
    """An ``AsyncEngine`` in an event loop of its own, which a thread runs.

    So its callers may come from several event loops, at once or one after the other, and one that
    keeps its loop busy delays nobody else.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = AsyncEngine(engine)
        self._process = os.getpid()
        self._closing = threading.RLock()  # held while a task is handed over
        self._closed = False
        self._turns = threading.Lock()
        self._tasks: dict[str, asyncio.Task[Any]] = {}  # by request; of its own loop only
        begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(
            target=self._live, args=(begun,), name="quire-loop", daemon=True
        )
        self._thread.start()
        self._loop, self._over = begun.result()
        atexit.register(self.close)  # a step that runs on as Python ends could crash

    @property
    def healthy(self) -> bool:
        """Whether it takes requests."""
        return self.engine.healthy and not self._closed

    async def ask(self, make: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """The result of a coroutine that runs in the engine's loop."""
        return await asyncio.wrap_future(self.submit(make))

    def submit(self, make: Callable[[], Coroutine[Any, Any, _T]]) -> Future[_T]:
        """The same for a thread without a loop, which may wait for the future."""
        if os.getpid() != self._process:
            raise EngineError(_FORKED)
        with self._closing:
            if self._closed:
                raise EngineError(_CLOSED)
            return asyncio.run_coroutine_threadsafe(make(), self._loop)

    async def stream(self, request_id: str, make: Callable[[], Deltas]) -> Deltas:
        """What an iterator of the engine's gives, in the caller's loop.

        request_id: what it goes by here; the engine may call its requests otherwise.

        It is closed with this one, or when the caller's task is cancelled, so that the blocks of
        its requests are freed before the next step. Raises what it raises.
        """
        loop = asyncio.get_running_loop()
        came: asyncio.Queue[list[Delta] | _End] = asyncio.Queue()

        def tell(what: list[Delta] | _End) -> None:
            loop.call_soon_threadsafe(came.put_nowait, what)

        async def read() -> None:
            with self._named(request_id):
                async with contextlib.aclosing(make()) as steps:
                    async for deltas in steps:
                        tell(deltas)

        def ended(done: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits any more
                tell(_End(self._why_cancelled() if done.cancelled() else done.exception()))

        reading = self.submit(read)
        reading.add_done_callback(ended)
        try:
            while not isinstance(one := await came.get(), _End):
                yield one
            if one.error is not None:
                raise one.error
        finally:
            reading.cancel()

    async def abort(self, request_id: str) -> None:
        """End a request, if there is such a one; its iterator raises a RequestAbortedError."""

        async def act() -> None:
            if request_id in self._tasks:
                self._tasks[request_id].cancel()

        await self.ask(act)

    def turn(self, act: Callable[[], _T]) -> _T:
        """What ``act`` returns or raises, once no other turn is under way; for a thread."""
        with self._turns:
            return act()

    def change(self, act: Callable[[], _T]) -> _T:
        """What ``act`` returns or raises between two steps; for a thread that may wait."""
        return self.submit(partial(self.engine.call, act)).result()

    def close(self, *, wait: bool = True) -> None:
        """End it after the step under way. All that still waits ends with an EngineError."""
        if os.getpid() != self._process:  # what is to be ended is another's
            return
        atexit.unregister(self.close)
        with self._closing:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._over.set)
        if wait:
            self._thread.join()

    # -- in its own loop -----------------------------------------------------------------------

    def _live(self, begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
        try:
            asyncio.run(self._serve(begun))
        except BaseException as error:
            if begun.done():
                raise
            begun.set_exception(error)
        finally:
            self.engine.engine.close()

    async def _serve(self, begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
        over = asyncio.Event()
        self.engine.start()
        begun.set_result((asyncio.get_running_loop(), over))
        await over.wait()
        await self.engine.stop()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=_LAST_WORDS)

    @contextlib.contextmanager
    def _named(self, request_id: str) -> Iterator[None]:
        """Let the task be found by its request. RequestError: another one is called so."""
        task = asyncio.current_task()
        assert task is not None
        if request_id in self._tasks:
            raise RequestError(f"request {request_id} is already running", "request_id")
        self._tasks[request_id] = task
        try:
            yield
        finally:
            del self._tasks[request_id]

    def _why_cancelled(self) -> Exception:
        if self._closed:
            return EngineError(_CLOSED)
        return RequestAbortedError("the request has been aborted")
