"""A port that anybody may call: one thread for all who do, whatever they say or keep back."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct

from quire.kernels.transport.frames import Buffer, Language, PeerError, pieces

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_MOST = 64  # callers at once
_SILENCE = 10.0  # seconds until a caller must have sent its next message, to the end
_LONGEST_ANSWER = 60.0  # seconds that a caller may take to receive all that a message has asked for
_SLOW_ANSWER = 5.0  # by then it makes room for others
_LOOK = 0.5  # seconds between looks at who is late
_PARTING = 1.0  # seconds until the port must be free again
_NO_FILES = 0.1  # seconds of rest where the process may open no more files


class Caller:
    """One who has called. For the listener's thread.

    host: where from. asks: whether it is its turn to speak. since: when its turn, or ours, began.
    """

    def __init__(self, wire: socket.socket, host: str) -> None:
        self._wire = wire
        self.host = host
        self.asks, self.since = True, time.monotonic()

    async def receive(self, language: Language[_T]) -> _T:
        """Its next message, which has no payload. PeerError: it is gone, or a stranger."""
        self._turn(asks=True)
        loop, parts = asyncio.get_running_loop(), language.arriving(0)
        while True:
            try:
                part = next(parts)
            except StopIteration as whole:
                self._turn(asks=False)
                message: _T = whole.value[0]
                return message
            while part:
                try:
                    count = await loop.sock_recv_into(self._wire, part)
                except OSError:
                    count = 0
                if not count:
                    raise PeerError("it has hung up")
                part = part[count:]

    async def send(self, message: Struct, payload: Buffer = b"") -> None:
        """Send a message. PeerError: it is gone."""
        loop = asyncio.get_running_loop()
        for piece in pieces(message, payload):
            try:
                await loop.sock_sendall(self._wire, piece)
            except OSError as error:
                raise PeerError("it has hung up") from error

    def detach(self) -> socket.socket:
        """Give up the socket, for somebody else to go on with."""
        return socket.socket(fileno=self._wire.detach())

    def ended(self, _: object) -> None:
        """Close the connection, unless it goes on elsewhere; also where it was never served."""
        self._wire.close()

    def _turn(self, *, asks: bool) -> None:
        self.asks, self.since = asks, time.monotonic()


Serve = Callable[[Caller], Awaitable[None]]


class Listener:
    """Serves each caller in a coroutine. Listens at once; must be closed.

    At most so many are connected. For a further one, that goes which has kept us waiting for
    longest, whether with its message or by not taking an answer.
    """

    def __init__(self, host: str, port: int) -> None:
        """port: 0, one that is free. OSError, OverflowError: it cannot be listened on."""
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._socket = socket.create_server(address, family=family)
        self._socket.setblocking(False)
        self.host, self.port = self._socket.getsockname()[:2]
        self._callers: dict[Caller, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing, self._closed = asyncio.Event(), threading.Event()

    def start(self, serve: Serve, name: str) -> None:
        """Begin to serve. name: of the thread."""
        self._loop = asyncio.SelectorEventLoop()
        threading.Thread(target=self._run, args=[self._loop, serve], name=name, daemon=True).start()

    def close(self) -> None:
        """Accept no more callers; answers that have begun are finished."""
        if self._loop is None:
            self._socket.close()
            return
        with suppress(RuntimeError):  # it has been closed before
            self._loop.call_soon_threadsafe(self._closing.set)
            self._closed.wait(_PARTING)

    # -- in its thread ---------------------------------------------------------------------------

    def _run(self, loop: asyncio.AbstractEventLoop, serve: Serve) -> None:
        try:
            loop.run_until_complete(self._listen(loop, serve))
        finally:
            loop.close()

    async def _listen(self, loop: asyncio.AbstractEventLoop, serve: Serve) -> None:
        tasks = [loop.create_task(work) for work in (self._accept(loop, serve), self._look())]
        await self._closing.wait()
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        self._socket.close()
        self._closed.set()
        for caller in [caller for caller in self._callers if caller.asks]:
            self._drop(caller)
        while self._callers:
            await asyncio.wait(self._callers.values())
        tasks[1].cancel()
        await asyncio.wait(tasks)

    async def _accept(self, loop: asyncio.AbstractEventLoop, serve: Serve) -> None:
        while True:
            try:
                wire, address = await loop.sock_accept(self._socket)
            except OSError:  # too many files
                await asyncio.sleep(_NO_FILES)
                continue
            if len(self._callers) >= _MOST and not self._make_room():
                wire.close()
                continue
            caller = Caller(wire, str(address[0]))
            task = self._callers[caller] = loop.create_task(self._serve(caller, serve))
            task.add_done_callback(caller.ended)

    async def _serve(self, caller: Caller, serve: Serve) -> None:
        try:
            await serve(caller)
        except PeerError as error:
            logger.debug("%s: %s", caller.host, error)
        except Exception:  # the others are served
            logger.exception("%s", caller.host)
        finally:
            self._callers.pop(caller, None)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            now = time.monotonic()
            for caller in list(self._callers):
                if now - caller.since > (_SILENCE if caller.asks else _LONGEST_ANSWER):
                    self._drop(caller)

    def _make_room(self) -> bool:
        late = time.monotonic() - _SLOW_ANSWER
        idle = [caller for caller in self._callers if caller.asks or caller.since < late]
        if idle:
            self._drop(min(idle, key=lambda caller: caller.since))
        return bool(idle)

    def _drop(self, caller: Caller) -> None:
        self._callers.pop(caller).cancel()
