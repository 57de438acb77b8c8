"""The threads in which texts become token ids."""

from __future__ import annotations

import asyncio
import ctypes
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from quire.errors import EngineError

LONG = 2**15  # characters or tokens; what is longer is prepared apart
_REST = 1.0  # seconds from a long input to giving memory back, once for all that come meanwhile

_T = TypeVar("_T")


class PreparationThreads:
    """Prepares inputs a few at a time, beside the engine and the event loop.

    Short inputs have threads of their own, so that they wait for no long one. Long ones come one
    after the other, which bounds the memory that they take; soon after, it is given back. An input
    whose task is cancelled before its turn is not prepared.
    """

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(2, "quire-short")
        self._long = ThreadPoolExecutor(1, "quire-long")
        self._giving_back: asyncio.TimerHandle | None = None
        self._closed = False

    async def run(self, size: int, prepare: Callable[[], _T]) -> _T:
        """What ``prepare`` returns or raises in one of the threads; EngineError once closed.

        size: characters or tokens of its input.
        """
        loop = asyncio.get_running_loop()

        def unless_closed() -> _T:
            if self._closed:
                raise EngineError("the engine has been stopped")
            return prepare()

        if self._closed:
            return unless_closed()
        if size <= LONG:
            return await loop.run_in_executor(self._short, unless_closed)
        try:
            return await loop.run_in_executor(self._long, unless_closed)
        finally:
            self.give_back_soon()

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
        for lane in (self._short, self._long):
            lane.shutdown(wait=False)

    def _give_back(self) -> None:
        self._giving_back = None
        self._long.submit(give_memory_back)  # after the inputs that wait there


def give_memory_back() -> None:
    """Return to the system what is free. glibc by itself keeps what many small pieces had."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
