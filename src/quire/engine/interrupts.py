"""Signals whose handlers are Python's: they have their effect where a caller lets them."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

_T = TypeVar("_T")


class Interrupts:
    """Holds signals back while a function runs, so that they tear nothing that it is at.

    Ctrl-C is one of them, and so is whatever the program has a handler of its own for. Only the
    main thread hears signals; in others nothing is to be held back.
    """

    def __init__(self) -> None:
        self._heard: list[int] = []
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def hold(self, act: Callable[[], _T]) -> _T:
        """What ``act`` returns; what it has not let through has its effect after it."""
        if threading.current_thread() is not threading.main_thread():
            return act()
        if within(Interrupts.hold, sys._getframe(1)):  # within another one's
            return act()
        self._heard.clear()
        try:
            self._take_over()
            return act()
        finally:
            self._give_back()
            self.let_through()

    def let_through(self) -> None:
        """What has been heard has its effect now. Raises what its handlers raise."""
        while self._heard:
            number = self._heard.pop(0)
            self._handlers[number](number, sys._getframe())

    def _take_over(self) -> None:
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler) and handler != self._hear:
                self._handlers[number] = handler
                signal.signal(number, self._hear)

    def _give_back(self) -> None:
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._hear:
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        """Of the frame that it comes in we see whether it is held: no flag could be left behind."""
        if within(Interrupts.hold, frame):
            self._heard.append(number)
        else:
            self._handlers[number](number, frame)


def within(function: Callable[..., Any], frame: FrameType | None) -> bool:
    """Whether a frame is of a call of a function, or of what that has called."""
    while frame is not None:
        if frame.f_code is function.__code__:
            return True
        frame = frame.f_back
    return False
