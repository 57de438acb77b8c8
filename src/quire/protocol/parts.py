"""Where a step's time goes, for whoever wants to know."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

_UNTIMED = nullcontext()


class Parts:
    """Times the parts of steps while somebody listens; else it does nothing.

    listener: told the part's name, its begin and its end, in seconds on the monotonic clock. Parts
        may hold others.
    """

    def __init__(self) -> None:
        self.listener: Callable[[str, float, float], None] | None = None

    def __call__(self, name: str) -> AbstractContextManager[None]:
        return _UNTIMED if self.listener is None else self._timed(name, self.listener)

    @contextmanager
    def _timed(self, name: str, listener: Callable[[str, float, float], None]) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            listener(name, begin, time.monotonic())
