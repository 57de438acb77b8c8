"""A box as the server sees it: calls that come back with a value, a refusal, or word of an end."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from quire.capabilities.box.inside import (
    FORK,
    LENGTH,
    PROCESS,
    REAP,
    BoxPlan,
    CallReply,
    leave_the_cores,
)
from quire.core.errors import EngineError, QuireError, RequestError

_LONGEST_START = 120.0  # seconds, in which a service reads what it needs
_HELD_UP = 4  # times as long as its processor's time something may take by the clock
_SHORTEST_LOOK, _LONGEST_LOOK = 0.01, 5.0  # seconds between two looks at its clock
_LARGEST = 256 << 20  # bytes of an answer
_LONG = 0.1  # seconds of a call, after which it leaves the cores to others
_T = TypeVar("_T")
# Before anything is imported: Ctrl-C is the server's. In a session of its own, which Linux may give
# as much of the cores as the server's, no process would leave them to others. Then the server's own
# modules.
_START = (
    "import os, sys; os.setpgid(0, 0); sys.path[:] = {path!r}\n"
    "from quire.capabilities.box.inside import main\nmain({fd})"
)
# One thread in a zygote.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class BoxBroken(QuireError):
    """A worker has ended, or has been ended, at a call. What it says is meant for who called."""


class Allowance:
    """The processor seconds that a process may spend on a call.

    Processor time counts, since other processes may keep it from computing. A much longer bound on
    the clock ends a process that waits for what does not come.
    """

    def __init__(self, process: int, seconds: float) -> None:
        self._seconds = seconds
        self._clock: Callable[[], float] = time.monotonic
        if sys.platform == "linux":  # which numbers the clock of a process so
            self._clock = partial(time.clock_gettime, ~process << 3 | 2)
        self._deadline = time.monotonic() + _HELD_UP * seconds
        self._last = 0.0
        self._began = self._last = self._now()

    def left(self) -> float:
        """Seconds after which to look again; 0: none is left."""
        self._last = self._now()
        left = self._seconds - self._last + self._began
        if left <= 0 or time.monotonic() > self._deadline:
            return 0.0
        return min(max(left, _SHORTEST_LOOK), _LONGEST_LOOK)

    def why(self) -> str:
        """The reason for the end, once no time is left."""
        if self._last - self._began < self._seconds:
            return f"it has not come to an end within {_HELD_UP * self._seconds:g} s"
        return f"it takes more than {self._seconds:g} s"

    def _now(self) -> float:
        try:
            return self._clock()
        except OSError:  # it has ended, as whoever listens to it is about to hear
            return self._last


class Box:
    """Runs a service in worker processes. Any thread may call it.

    A service is an object with methods; ``target`` ("module:callable") makes it of arguments that
    can be pickled. What its methods give is msgpack. It is made once, in a process from which
    workers are forked, which begins with the first call. A worker that crashes, or takes longer or
    more memory than it may, ends one call; the next one has a new worker.
    """

    def __init__(
        self,
        target: str,
        *arguments: object,
        memory: int = 1 << 30,
        workers: int = 2,
        shared: int = 0,
    ) -> None:
        """memory: bytes that a worker may take, beside what making the service took.

        workers: calls that are carried out at the same time, and as many again that have taken
        longer than a moment, for which no other call waits. shared: bytes that each worker shares
        with the server (``BoxWorker.shared``); its service has them by its method ``share``.
        """
        self._plan = BoxPlan(target, arguments, memory, shared)
        self._zygote: _Zygote | None = None
        self._lock = threading.Lock()  # of the zygote
        self._turns = threading.Semaphore(workers)
        self._long_turns = threading.Semaphore(workers)
        self._idle: list[BoxWorker] = []
        self._closed = False

    def call(self, method: str, *arguments: object, seconds: float, gives: type[_T]) -> _T:
        """The result of a method of the service, of the type ``gives``.

        RequestError, as the method has raised it; BoxBroken if it has not come to an end, or not
        within ``seconds`` of a processor.
        """
        with self._turns:
            worker, is_long = self._rested() or self.worker(), False
            allowed = worker.allows(seconds)
            try:
                worker.send(method, *arguments)
                return worker.receive(min(seconds, _LONG), gives)
            except TimeoutError:
                is_long = True
            finally:
                if not is_long and not worker.ended:
                    self._idle.append(worker)
        waits = not self._long_turns.acquire(blocking=False)
        if waits:
            worker.end()  # and begin anew in its turn
            self._long_turns.acquire()
        try:
            if waits:
                worker = self.worker()
                allowed = worker.allows(seconds)
                worker.send(method, *arguments)
            return worker.finish(allowed, gives)
        finally:
            worker.end()
            self._long_turns.release()

    def worker(self) -> BoxWorker:
        """A new worker for the caller alone, who ends it."""
        with self._lock:
            for again in (True, False):
                if self._closed:
                    raise EngineError("the engine has been stopped")
                try:
                    if self._zygote is None:
                        self._zygote = _Zygote(self._plan, self._is_closed)
                    return self._zygote.fork()
                except (OSError, EOFError) as error:
                    if self._zygote is not None:
                        self._zygote.end()
                        self._zygote = None
                    if not again:
                        raise BoxBroken(f"its process cannot be started: {error}") from error
        raise AssertionError

    def close(self) -> None:
        """End all processes at once; callers that wait get a BoxBroken."""
        self._closed = True
        if (zygote := self._zygote) is not None:
            zygote.end()
        while self._idle:
            self._idle.pop().end()

    def _rested(self) -> BoxWorker | None:
        """An idle worker that has not ended; None: there is none."""
        while True:
            try:
                worker = self._idle.pop()
            except IndexError:
                return None
            with suppress(BoxBroken):
                try:
                    worker.receive(0.0, object)
                except TimeoutError:
                    return worker
            worker.end()

    def _is_closed(self) -> bool:
        return self._closed


class _Zygote:
    """The process from which workers are forked."""

    def __init__(self, plan: BoxPlan, is_closed: Callable[[], bool]) -> None:
        self._lock = threading.Lock()  # of the socket
        self._shared = plan.shared
        self._workers = set[int]()
        self._control, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START.format(path=sys.path, fd=fd)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[fd],
                env={**os.environ, **_ONE_THREAD},
            )
        self.end = weakref.finalize(self, _end, self._control, self._process, self._workers)
        try:
            connection = _Connection(self._control)
            connection.send(tuple(plan))
            allowed = Allowance(self._process.pid, _LONGEST_START)
            while True:
                if is_closed():
                    raise EngineError("the engine has been stopped")
                with suppress(TimeoutError):
                    reply = connection.receive(0.1)
                    break
                if not allowed.left():
                    raise BoxBroken(f"its process has not started: {allowed.why()}")
            _value(reply, object)
        except BaseException:
            self.end()
            raise
        self._control.settimeout(_LONGEST_START)

    def fork(self) -> BoxWorker:
        """Fork a worker. OSError or EOFError: the zygote has ended."""
        ours, theirs = socket.socketpair()
        shared = None
        with theirs, tempfile.TemporaryFile() as file:
            fds = [theirs.fileno()]
            if self._shared:
                file.truncate(self._shared)
                shared = mmap.mmap(file.fileno(), self._shared)
                fds.append(file.fileno())
            with self._lock:
                try:
                    socket.send_fds(self._control, [FORK], fds)
                    process = self._answer()
                except BaseException:
                    ours.close()
                    raise
                self._workers.add(process)
        return BoxWorker(self, process, ours, shared)

    def kill(self, process: int) -> int:
        """Kill a worker; its status as ``os.waitpid`` gives it, also if it had ended before."""
        with self._lock:
            if process not in self._workers or self._process.poll() is not None:
                raise EOFError("it has ended")
            os.kill(process, signal.SIGKILL)  # nobody else has its number before it is reaped
            self._workers.discard(process)
            self._control.sendall(REAP + PROCESS.pack(process))
            return self._answer()

    def _answer(self) -> int:
        answer = self._control.recv(PROCESS.size, socket.MSG_WAITALL)
        if len(answer) < PROCESS.size:
            raise EOFError("it has ended")
        number: int = PROCESS.unpack(answer)[0]
        return number


class BoxWorker:
    """A worker process. One thread at a time uses it.

    shared: the memory that it shares with its service.
    """

    def __init__(
        self, zygote: _Zygote, process: int, calls: socket.socket, shared: mmap.mmap | None
    ) -> None:
        self.process = process
        self.ended = False
        self._shared = shared
        self._zygote, self._calls, self._connection = zygote, calls, _Connection(calls)
        self._close = weakref.finalize(self, calls.close)

    @property
    def shared(self) -> mmap.mmap:
        assert self._shared is not None, "its box shares no memory"
        return self._shared

    def call(self, method: str, *arguments: object, seconds: float, gives: type[_T]) -> _T:
        allowed = self.allows(seconds)
        self.send(method, *arguments)
        with suppress(TimeoutError):
            return self.receive(min(seconds, _LONG), gives)
        return self.finish(allowed, gives)

    def allows(self, seconds: float) -> Allowance:
        """The allowance for a call that is about to begin."""
        return Allowance(self.process, seconds)

    def finish(self, allowed: Allowance, gives: type[_T]) -> _T:
        """Wait for the result of a call that takes long."""
        self._leave_the_cores()
        while left := allowed.left():
            with suppress(TimeoutError):
                return self.receive(left, gives)
        self.end()
        raise BoxBroken(allowed.why())

    def send(self, method: str, *arguments: object) -> None:
        """Begin a call; BoxBroken if the worker has ended. The one before has come back."""
        try:
            self._connection.send((method, arguments))
        except OSError:
            raise self._broken() from None

    def receive(self, seconds: float, gives: type[_T]) -> _T:
        """The result of a call that has begun.

        TimeoutError: it has not come within ``seconds``; it may be waited for again.
        """
        try:
            reply = self._connection.receive(seconds)
            if reply.kind != "fails":
                return _value(reply, gives)
        except (EOFError, msgspec.MsgspecError, ConnectionError):
            raise self._broken() from None
        self.end()
        raise BoxBroken(reply.text)

    def end(self) -> int | None:
        """Kill it; how it has ended, if that can be known."""
        if self.ended:
            return None
        self.ended = True
        self._close()
        with suppress(OSError, EOFError):
            return self._zygote.kill(self.process)
        return None

    def _leave_the_cores(self) -> None:
        with suppress(OSError):
            for thread in Path(f"/proc/{self.process}/task").iterdir():
                leave_the_cores(int(thread.name))

    def fileno(self) -> int:
        """The descriptor of the socket in which answers come."""
        return self._calls.fileno()

    def _broken(self) -> BoxBroken:
        status = self.end()
        if status is None or not os.WIFSIGNALED(status):
            return BoxBroken("its process has ended")
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name
        why = ", as what needs too much memory does" if number == signal.SIGABRT else ""
        return BoxBroken(f"its process has ended by {name}{why}")


class _Connection:
    """Frames over a socket; what comes in is trusted with nothing."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._buffer = bytearray()  # the beginning of a frame

    def send(self, message: object) -> None:
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._socket.settimeout(_LONGEST_START)
        self._socket.sendall(LENGTH.pack(len(body)) + body)

    def receive(self, seconds: float) -> CallReply:
        """The next reply. TimeoutError: it may still come. Any other error: it never will."""
        deadline = time.monotonic() + seconds
        while (frame := self._frame()) is None:
            self._socket.settimeout(max(0.0, deadline - time.monotonic()))
            try:
                data = self._socket.recv(1 << 20)
            except BlockingIOError:
                raise TimeoutError from None
            if not data:
                raise EOFError("it has ended")
            self._buffer += data
        return msgspec.msgpack.decode(frame, type=CallReply)

    def _frame(self) -> bytes | None:
        head, buffer = LENGTH.size, self._buffer
        if len(buffer) < head:
            return None
        (size,) = LENGTH.unpack_from(buffer)
        if size > _LARGEST:
            raise EOFError(f"it answers with {size:,} bytes")
        if len(buffer) < head + size:
            return None
        frame = bytes(buffer[head : head + size])
        del buffer[: head + size]
        return frame


def _value(reply: CallReply, gives: type[_T]) -> _T:
    if reply.kind == "gives":
        return msgspec.msgpack.decode(reply.value, type=gives)
    raise (
        RequestError(reply.text, reply.field) if reply.kind == "refuses" else BoxBroken(reply.text)
    )


def _end(control: socket.socket, process: subprocess.Popen[Any], workers: set[int]) -> None:
    if process.poll() is None:  # else the system has ended the workers, and their numbers are free
        for worker in list(workers):
            os.kill(worker, signal.SIGKILL)
    control.close()
    process.kill()
    process.wait()
