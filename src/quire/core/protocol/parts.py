"""Where a step's time goes, for whoever wants to know."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

_UNTIMED = nullcontext()
Listener = Callable[[str, float, float], None]
"""Told a part's name, its begin and its end, in seconds on the monotonic clock."""


class Parts:
    """Times the parts of steps while somebody listens; else it does nothing.

    listeners: by what they listen for. Parts may hold others.
    """

    def __init__(self) -> None:
        self.listeners: dict[str, Listener] = {}

    def __call__(self, name: str) -> AbstractContextManager[None]:
        return _Timed(name, self.listeners) if self.listeners else _UNTIMED


class _Timed(AbstractContextManager[None]):
    """One part. A generator would take three times as long."""

    __slots__ = ("_begin", "_listeners", "_name")

    def __init__(self, name: str, listeners: Mapping[str, Listener]) -> None:
        self._name, self._listeners = name, listeners
        self._begin = time.monotonic()

    def __enter__(self) -> None:
        self._begin = time.monotonic()

    def __exit__(self, *_: object) -> None:
        end = time.monotonic()
        for listener in [*self._listeners.values()]:
            listener(self._name, self._begin, end)
