"""The threads in which texts become token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from quire.core.errors import EngineError
from quire.kernels.heap import give_memory_back

LONG = 2**15  # characters or tokens; what is longer is prepared apart
WAITING = 16  # threads that wait for other processes: who takes long there keeps few waiting
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
