"""An engine for Python's callers: their calls wait in line, and none leaves it torn."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from quire.core.errors import EngineError, QuireError
from quire.engine.engine import Engine
from quire.engine.input_processor import PreparedRequest
from quire.engine.many import naming
from quire.engine.outputs import Delta

_T = TypeVar("_T")
_FORKED = (
    "this process was forked from the one that made this LLM, and has none of its threads: make "
    'an LLM of its own here, or start processes with multiprocessing.get_context("spawn")'
)
_TORN = "another call of this LLM was interrupted in the middle of a step, which this one shared"


class Interrupts:
    """Holds signals back while a function runs, so that they tear nothing that it is at.

    Ctrl-C is one of them, and so is whatever the program has a handler of its own for. Only the
    main thread hears signals; in others nothing is to be held back.
    """

    def __init__(self) -> None:
        self._heard: list[int] = []
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def hold(self, act: Callable[[], _T]) -> _T:
        """What ``act`` returns; signals that come meanwhile are handled after it."""
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
        """Handle the signals that were held back. Raises what their handlers raise."""
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


class Driver:
    """Steps an engine for all who wait for what it gives, whichever of them makes it step.

    Each verb takes its ``turn``: one thread's after the other's. Signals have their effect between
    steps. What an exception tears all the same (one that a library raises, or a debugger), so that
    nobody knows what of the engine is as it should be, costs all that the engine holds: it begins
    anew, without requests, sessions and a prefix cache.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._collectors: dict[str, deque[Delta]] = {}
        self._left: list[str] = []  # requests for which nobody waits any more
        self._line = threading.RLock()
        self._process = os.getpid()
        self._interrupts = Interrupts()
        self._closed = False

    def turn(self, act: Callable[[], _T]) -> _T:
        """What ``act`` returns or raises, once nobody else's call is under way."""
        if os.getpid() != self._process:  # before the line, in which nobody may be left to move on
            raise EngineError(_FORKED)
        # On one line, so that an exception at any line leaves none where the turn would not end.
        with self._line: return self._interrupts.hold(lambda: self._whole(act))  # noqa: E701  # fmt: skip

    def change(self, act: Callable[[], _T]) -> _T:
        """The turn of what changes the engine wholly, or fails with a QuireError and not at all."""
        return self.turn(lambda: self._change(act))

    def run(self, requests: Sequence[PreparedRequest], took: Callable[[Delta], None]) -> None:
        """Prepared requests to their ends, or none if one is refused. took: told of each delta."""
        self.turn(lambda: self._run(requests, took))

    def stream(self, request_id: str, queue: Callable[[], None]) -> Generator[Delta, None, None]:
        """What a request gives that ``queue`` queues, to its end; other calls may come in between.

        Closed before that, it aborts the request.
        """
        collector: deque[Delta] = deque()

        def begin() -> None:
            self._change(queue)
            self._collectors[request_id] = collector

        def more() -> Delta:
            while not collector:
                if self._collectors.get(request_id) is not collector:
                    raise EngineError(_TORN)
                self._step()
                self._interrupts.let_through()
            return collector.popleft()

        finished = False
        try:
            self.turn(begin)
            while not finished:
                delta = self.turn(more)
                finished = delta.final is not None
                if delta.failure is not None:
                    raise delta.failure
                yield delta
        finally:
            if self._collectors.get(request_id) is collector:
                del self._collectors[request_id]
                self._left.append(request_id)
            # Python may be at this, as it collects garbage, in the midst of anything.
            if not within(Driver._change, sys._getframe()):
                self.turn(lambda: None)

    def close(self) -> None:
        """End what the engine has begun. Calls are refused from then on."""

        def end() -> None:
            if not self._closed:
                self._closed = True
                self._collectors.clear()
                self.engine.close()

        if os.getpid() == self._process:  # else what is to be ended is another's
            self.turn(end)

    # -- within a turn -------------------------------------------------------------------------

    def _whole(self, act: Callable[[], _T]) -> _T:
        """Do it with an engine that is whole, and leave it whole."""
        if within(Driver._whole, sys._getframe(1)):  # a call within a call
            return act()
        if self.engine.torn:
            self._renew()
        try:
            while self._left and not self._closed:
                self._change(partial(self.engine.abort, self._left.pop()))
            return act()
        except BaseException:
            if self.engine.torn:
                self._renew()
            raise

    def _renew(self) -> None:
        self._collectors.clear()
        self._left.clear()
        self.engine.renew()

    def _change(self, act: Callable[[], _T]) -> _T:
        if self._closed:
            raise EngineError("this LLM has been closed")
        self.engine.torn = True
        try:
            done = act()
        except QuireError:
            self.engine.torn = False
            raise
        self.engine.torn = False
        return done

    def _step(self) -> list[Delta]:
        """One step of the engine; the deltas that no stream waits for."""
        others: list[Delta] = []
        for delta in self._change(self.engine.step):
            collector = self._collectors.get(delta.request_id)
            (others if collector is None else collector).append(delta)
        return others

    def _run(self, requests: Sequence[PreparedRequest], took: Callable[[Delta], None]) -> None:
        waiting = {request.request.request_id for request in requests}
        try:
            for number, request in enumerate(requests):
                with naming("prompts", number, len(requests)):
                    self._change(partial(self._submit, request))
            while waiting:
                deltas = self._step()
                self._interrupts.let_through()
                for delta in deltas:
                    took(delta)
                    if delta.final is not None:
                        waiting.discard(delta.request_id)
        finally:  # refused or interrupted: leave nothing behind
            if not self.engine.torn:
                self._change(lambda: self._end(waiting))

    def _submit(self, prepared: PreparedRequest) -> None:
        """Queue a request, whose arrival is now."""
        request = replace(prepared.request, arrival=self.engine.clock())
        self.engine.submit(replace(prepared, request=request))

    def _end(self, request_ids: set[str]) -> None:
        for request_id in request_ids:
            self.engine.abort(request_id)
        self.engine.put_away()
