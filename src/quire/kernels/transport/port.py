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
from msgspec.msgpack import Decoder

from quire.kernels.transport.connection import Buffer, PeerError, arriving, pieces

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_MOST = 64  # guests at once
_SILENCE = 10.0  # seconds until a guest must have sent its next message, to the end
_LONGEST_ANSWER = 60.0  # seconds that a guest may take to receive all that a message has asked for
_SLOW_ANSWER = 5.0  # by then it makes room for others
_LOOK = 0.5  # seconds between looks at who is late
_PARTING = 1.0  # seconds until the port must be free again
_NO_FILES = 0.1  # seconds of rest where the process may open no more files


class Guest:
    """A process that has connected. For the port's thread.

    host: its address. asks: whether it is its turn to send. since: when its turn, or ours, began.
    """

    def __init__(self, wire: socket.socket, host: str) -> None:
        self._wire = wire
        self.host = host
        self.asks, self.since = True, time.monotonic()

    async def receive(self, decoder: Decoder[_T]) -> _T:
        """Its next message, which has no payload. PeerError: it is gone, or a stranger."""
        self._turn(asks=True)
        loop, parts = asyncio.get_running_loop(), arriving(decoder, 0)
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


Serve = Callable[[Guest], Awaitable[None]]


class Port:
    """Serves each guest in a coroutine. Listens at once; must be closed.

    The number of guests is bounded. A further one displaces the guest that has kept us waiting
    longest, for its message or by not taking an answer.
    """

    def __init__(self, host: str, port: int) -> None:
        """port: 0: any free one. OSError, OverflowError: it cannot be listened on."""
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._socket = socket.create_server(address, family=family)
        self._socket.setblocking(False)
        self.host, self.port = self._socket.getsockname()[:2]
        self._guests: dict[Guest, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing, self._closed = asyncio.Event(), threading.Event()

    def start(self, serve: Serve, name: str) -> None:
        """Begin to serve. name: of the thread."""
        self._loop = asyncio.SelectorEventLoop()
        threading.Thread(target=self._run, args=[self._loop, serve], name=name, daemon=True).start()

    def close(self) -> None:
        """Accept no more guests; answers that have begun are finished."""
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
        for guest in [guest for guest in self._guests if guest.asks]:
            self._drop(guest)
        while self._guests:
            await asyncio.wait(self._guests.values())
        tasks[1].cancel()
        await asyncio.wait(tasks)

    async def _accept(self, loop: asyncio.AbstractEventLoop, serve: Serve) -> None:
        while True:
            try:
                wire, address = await loop.sock_accept(self._socket)
            except OSError:  # too many files
                await asyncio.sleep(_NO_FILES)
                continue
            if len(self._guests) >= _MOST and not self._make_room():
                wire.close()
                continue
            guest = Guest(wire, str(address[0]))
            task = self._guests[guest] = loop.create_task(self._serve(guest, serve))
            task.add_done_callback(guest.ended)

    async def _serve(self, guest: Guest, serve: Serve) -> None:
        try:
            await serve(guest)
        except PeerError as error:
            logger.debug("%s: %s", guest.host, error)
        except Exception:  # the others are served
            logger.exception("%s", guest.host)
        finally:
            self._guests.pop(guest, None)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            now = time.monotonic()
            for guest in list(self._guests):
                if now - guest.since > (_SILENCE if guest.asks else _LONGEST_ANSWER):
                    self._drop(guest)

    def _make_room(self) -> bool:
        late = time.monotonic() - _SLOW_ANSWER
        idle = [guest for guest in self._guests if guest.asks or guest.since < late]
        if idle:
            self._drop(min(idle, key=lambda guest: guest.since))
        return bool(idle)

    def _drop(self, guest: Guest) -> None:
        self._guests.pop(guest).cancel()
