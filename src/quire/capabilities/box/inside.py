"""What runs in the processes of a box: the zygote, and the workers that it forks.

The zygote makes the service once, which loads modules and reads vocabularies, and then only forks.
It runs nothing of a client's and has one thread, so that a fork of it is whole and takes
milliseconds. A worker carries out calls, one after the other, on a stack of its own. It ends with
the server, however that ends: its socket ends, and the zygote or the system kills it.

A frame is its length and a body. What a worker is sent is pickled. What it answers is msgpack, of a
known type: a worker may be in the hands of who sent it something.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import mmap
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from quire.core.errors import RequestError, reason

FORK, REAP = b"F", b"R"  # what a zygote is asked for
LENGTH = struct.Struct("!Q")
PROCESS = struct.Struct("!q")
_NICE = 10
_STACK = 64 << 20  # bytes: native code recurses as deep as texts are nested
_DIE_WITH_PARENT = 1  # Linux's PR_SET_PDEATHSIG


def leave_the_cores(thread: int) -> None:
    """Give a thread so low a priority that others have the cores. It cannot be undone.

    Where its priority is lower already it stays so. OSError: the thread has ended.
    """
    if sys.platform == "linux":
        nice = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, max(nice, _NICE))


class BoxPlan(NamedTuple):
    """What a zygote makes its service of, and what its workers may have.

    target: "module:callable", to be called with the arguments. memory: bytes, beside what the
    zygote has. shared: bytes that a worker shares with the server.
    """

    target: str
    arguments: tuple[object, ...]
    memory: int
    shared: int


class CallReply(msgspec.Struct, array_like=True):
    """The reply to a call: its result, why it is refused, or how it has failed."""

    kind: Literal["gives", "refuses", "fails"]
    text: str = ""
    field: str = ""
    value: msgspec.Raw = msgspec.Raw(b"\xc0")


def main(control_fd: int) -> None:
    """Be a zygote, until the server closes its end of the socket."""
    control = socket.socket(fileno=control_fd)
    plan = BoxPlan(*pickle.loads(_receive(control)))
    try:
        module, _, name = plan.target.partition(":")
        service = getattr(importlib.import_module(module), name)(*plan.arguments)
    except BaseException as error:
        _send(control, _failure(error))
        return
    gc.collect()
    gc.freeze()  # so that collecting in a worker copies no pages
    _send(control, CallReply("gives"))
    workers = set[int]()
    try:
        while True:
            asked, fds, _, _ = socket.recv_fds(control, 1, 2)
            if asked == FORK:
                process = os.fork()
                if process == 0:
                    control.close()
                    _work(service, plan, *fds)
                workers.add(process)
                for fd in fds:
                    os.close(fd)
                control.sendall(PROCESS.pack(process))
            elif asked == REAP:
                (process,) = PROCESS.unpack(control.recv(PROCESS.size, socket.MSG_WAITALL))
                workers.discard(process)
                control.sendall(PROCESS.pack(os.waitpid(process, 0)[1]))
            else:
                return
    finally:
        for process in workers:
            os.kill(process, signal.SIGKILL)


def _work(service: Any, plan: BoxPlan, calls_fd: int, shared_fd: int | None = None) -> None:
    """Be a worker, and never return."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody writes into the server's log
        _confine(plan.memory)
        if shared_fd is not None:
            service.share(mmap.mmap(shared_fd, plan.shared))
            os.close(shared_fd)
        threading.stack_size(_STACK)
        calls = socket.socket(fileno=calls_fd)
        thread = threading.Thread(target=_serve, args=(calls, service))
        thread.start()
        thread.join()
    finally:
        os._exit(1)


def _confine(memory: int) -> None:
    with suppress(OSError, AttributeError):  # other systems have no such call
        libc = ctypes.CDLL(None)
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # sooner this one than the server
    _limit(resource.RLIMIT_CORE, 0)
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + _STACK + memory)


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(what, (most, most))


def _serve(calls: socket.socket, service: Any) -> None:
    with suppress(EOFError, OSError):
        while True:
            method, arguments = pickle.loads(_receive(calls))
            try:
                given = getattr(service, method)(*arguments)
                reply = CallReply("gives", value=msgspec.Raw(msgspec.msgpack.encode(given)))
            except RequestError as error:
                reply = CallReply("refuses", str(error), error.field)
            except BaseException as error:  # what native code panics with is no Exception
                _send(calls, _failure(error))
                break  # nobody knows what it has left half way
            _send(calls, reply)
    os._exit(1)


def _failure(error: BaseException) -> CallReply:
    if isinstance(error, RequestError):
        return CallReply("refuses", str(error), error.field)
    if isinstance(error, MemoryError):
        return CallReply("fails", "it needs too much memory")
    return CallReply("fails", f"{type(error).__name__}: {reason(error)}")


def _send(to: socket.socket, reply: CallReply) -> None:
    body = msgspec.msgpack.encode(reply)
    to.sendall(LENGTH.pack(len(body)) + body)


def _receive(source: socket.socket) -> bytes:
    """The body of a frame, which the server has sent."""
    return _exactly(source, LENGTH.unpack(_exactly(source, LENGTH.size))[0])


def _exactly(source: socket.socket, size: int) -> bytes:
    body = bytearray(size)
    view = memoryview(body)
    while view:
        count = source.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return bytes(body)
