"""An event loop without a clock of its own: when nothing is left to do now, it is later."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any


class StandstillError(AssertionError):
    """Somebody waits for what will never happen."""


class _Nothing(selectors.SelectSelector):
    """No sockets: to wait is to let time pass."""

    def __init__(self, advance: Callable[[float | None], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[Any]:
        self._advance(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """One thread, in which everything happens in an order that depends on nothing outside.

    thread_seconds: how long what is given to an executor of few threads takes to be done. The
    loop's own executor always has a thread free, and what it is given is done at once.
    """

    def __init__(self, thread_seconds: Callable[[], float]) -> None:
        self._now = 0.0
        self._failure: BaseException | None = None
        self._thread_seconds = thread_seconds
        super().__init__(_Nothing(self._pass))

    def time(self) -> float:
        return self._now

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What fails where nobody can catch it ends the life."""
        self._failure = self._failure or context.get("exception") or AssertionError(context)

    def _pass(self, seconds: float | None) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if seconds is None:
            raise StandstillError("nothing is going to happen any more, and somebody waits")
        self._now += max(0.0, seconds)

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        return self.call_soon(callback, *args, **kw)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.create_future()

        def do() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(0.0 if executor is None else self._thread_seconds(), do)
        return future
