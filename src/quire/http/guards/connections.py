"""Connections: how many there may be, how long and how large a request's head may be.

A client that holds many, or sends heads without an end, is in nobody's way but his own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from quire.http.answers.rendering import encode
from quire.http.answers.streaming import DIRECT
from quire.http.errors import SERVER, ErrorAnswer, Problem
from quire.http.guards.envelope import new_id
from quire.http.guards.turns import Haste, Turnstile

MOST_HEAD_BYTES = 64 * 1024  # of a request's line and headers, and of what follows a chunked body
_MOST_PIPELINED = 32  # requests sent before the first of them is answered
_WORTH_TELLING = 1024  # bytes of a body, while it comes
_SPARE = 64  # entries of who waits no more, until they are cleared away
_PER_HEADER = 32  # bytes that a header takes beside its text

logger = logging.getLogger(__name__)


class Connections:
    """The connections of one server, at most ``most``.

    Those that wait for their client, who has sent no whole request to be answered or does not
    read the answer, are closed if there is no room for a new one: the longest in that state
    first. So a client that opens connections to hold them closes its own.
    """

    def __init__(self, most: int, head_timeout: float) -> None:
        self.head_timeout = head_timeout
        # Each address is one who asks, and another where it only reads, which is little work.
        haste = Haste()
        self.turnstile = Turnstile(haste)
        self.leaving = Turnstile(haste)
        self._most = most
        self._open: set[ClientConnection] = set()
        self._numbers = count()
        self._waiting: dict[int, ClientConnection] = {}  # the lower the number, the longer
        # A heap of these, and of some who wait no more, or twice. Those who have sent something
        # that is not read are passed over, and come back when it is.
        self._longest: list[int] = []
        self._warned = False

    def admit(self, connection: ClientConnection) -> bool:
        """Whether there is room for a new connection, made by closing another if need be."""
        if len(self._open) >= self._most:
            if not self._warned:
                logger.warning("max_connections: %d are open, for the first time", self._most)
                self._warned = True
            longest = self._longest_waiting()
            if longest is None:
                return False
            self.remove(longest)
            longest.cut()
        self._open.add(connection)
        self.waits(connection)
        return True

    def waits(self, connection: ClientConnection) -> None:
        """Note that a connection waits for its client."""
        if connection in self._open and connection.waits_as is None:
            connection.waits_as = next(self._numbers)
            self._waiting[connection.waits_as] = connection
            self.is_read(connection)

    def is_read(self, connection: ClientConnection) -> None:
        """Note that nothing lies there that it has sent."""
        if connection.waits_as is not None:
            heappush(self._longest, connection.waits_as)
        if len(self._longest) > 2 * len(self._waiting) + _SPARE:
            self._longest = [*self._waiting]  # which is in order

    def works(self, connection: ClientConnection) -> None:
        """Note that its client waits for it: it is not closed to make room."""
        if connection.waits_as is not None:
            del self._waiting[connection.waits_as]
            connection.waits_as = None

    def remove(self, connection: ClientConnection) -> None:
        self._open.discard(connection)
        self.works(connection)

    def _longest_waiting(self) -> ClientConnection | None:
        """Who has waited longest for its client, of whom everything has been read."""
        while self._longest:
            one = self._waiting.get(heappop(self._longest))
            if one is not None and not one.held:
                return one
        return None


class ClientConnection(HttpToolsProtocol):
    """uvicorn's protocol for one connection, with limits for its number and for requests' heads.

    What uvicorn has for requests is made when the first comes: thousands of connections that send
    nothing are soon accepted, and those behind them heard.
    """

    def __init__(self, others: Connections, server_state: ServerState, **options: Any) -> None:
        self.connections = server_state.connections
        self.cycle = None  # type: ignore[assignment]
        self._begin_with = {"server_state": server_state, **options}
        self._begun = False
        self._others = others
        self._cycles: deque[RequestResponseCycle] = deque()  # requests that are to be answered
        self.held = b""  # received, until its turn comes
        self.waits_as: int | None = None  # the others' number for it while it waits for its client
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # of the request that is being received
        self._unseen_bytes = 0  # received since the parser has last had something to tell

    # -- its life --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        if not self._others.admit(self):
            text = "the server has as many connections as it may have"
            return self._refuse(Problem(503, text, SERVER, code="too_many_connections"))
        self.connections.add(self)
        self._await_head()

    def _begin(self) -> None:
        if not self._begun:
            transport, self._begun = self.transport, True
            super().__init__(**self._begin_with)
            self.access_log = False  # the app writes its own
            super().connection_made(transport)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Who hangs up is let go when it is his turn, but for TLS, which does not ask."""
        if self.transport.get_extra_info("sslcontext"):
            return False
        self._others.leaving.wait(None, self.transport.close)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.remove(self)
        self.connections.discard(self)
        self._cancel_timer()
        self._disconnect()
        if self._begun:
            super().connection_lost(exc)
            self._let_go()

    def _let_go(self) -> None:
        """Refer to nothing that refers to this, so that it goes with its client.

        What thousands leave behind who hang up together would else be there until garbage is
        looked for, and that would take as long as looking through all of it.
        """
        self._unset_keepalive_if_required()
        for cycle in self._cycles:
            cycle.scope["state"].pop(DIRECT, None)
        self._cycles.clear()
        self.pipeline.clear()
        self.cycle = None  # type: ignore[assignment]

    def cut(self) -> None:
        """End it at once, whatever has not been sent."""
        self._disconnect()
        self.transport.abort()

    def _disconnect(self) -> None:
        """Tell all requests that the client is gone; uvicorn tells the last one only."""
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()

    def _await_head(self) -> None:
        if self._head_timer is None:
            loop = asyncio.get_running_loop()
            self._head_timer = loop.call_later(self._others.head_timeout, self.cut)

    def _cancel_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # -- what is received ------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._cycles:
            return self._take(data)
        if self.held:
            self._begin()
            self.held += data
            return self.flow.pause_reading()
        self.held = data
        peer = self.transport.get_extra_info("peername")
        asker = peer and peer[0], data.startswith(b"GET ")
        self._others.turnstile.wait(asker, self._take_held)

    def _take_held(self) -> None:
        """Parse what has come for a new request."""
        data, self.held = self.held, b""
        self._others.is_read(self)
        if not self.transport.is_closing():
            self._begin()
            self.flow.resume_reading()
            self._take(data)

    def _take(self, data: bytes) -> None:
        self._unseen_bytes += len(data)
        super().data_received(data)
        if self._unseen_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self._refuse_head()
        if not self._cycles:
            self._await_head()  # of the next request, or the rest of one that is answered

    def on_message_begin(self) -> None:
        self._head_bytes = self._unseen_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + _PER_HEADER)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unseen_bytes = 0
        self._cancel_timer()
        if len(self._cycles) >= _MOST_PIPELINED:
            raise ValueError("too many requests at once")  # the parser stops, see below
        super().on_headers_complete()
        self._cycles.append(self.cycle)
        self.scope["state"][DIRECT] = self.cycle.send

    def on_body(self, body: bytes) -> None:
        """Told to the app when there is much of it, or all: a slow client wakes nobody."""
        self._unseen_bytes = 0
        if not self.cycle.response_complete:
            self.cycle.body += body
        if len(self.cycle.body) > _WORTH_TELLING:
            super().on_body(b"")

    def on_message_complete(self) -> None:
        self._unseen_bytes = 0
        if self._cycles:
            self._others.works(self)
        super().on_message_complete()

    # -- what is sent ----------------------------------------------------------------------

    def on_response_complete(self) -> None:
        self._cycles.popleft().scope["state"].pop(DIRECT, None)
        if not self._cycles:
            self._others.waits(self)
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._others.waits(self)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._cycles:
            self._others.works(self)
        super().resume_writing()

    # -- what is refused -------------------------------------------------------------------

    def _count(self, size: int) -> None:
        self._unseen_bytes = 0
        self._head_bytes += size
        if self._head_bytes > MOST_HEAD_BYTES:
            raise ValueError("the head is too large")

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls when the parser has stopped."""
        if self._head_bytes > MOST_HEAD_BYTES:
            self._refuse_head()
        else:
            self._refuse(Problem(400, "this is not an HTTP request"))

    def _refuse_head(self) -> None:
        text = f"the line and headers of a request may have {MOST_HEAD_BYTES:,} bytes together"
        self._refuse(Problem(431, text))

    def _refuse(self, problem: Problem) -> None:
        """Answer without the app, and end."""
        if len(self._cycles) > 1 or any(cycle.response_started for cycle in self._cycles):
            return self.cut()  # it would be taken for a part of another answer
        self._disconnect()
        self._others.waits(self)
        content = encode(ErrorAnswer.of(problem))
        head = (
            b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n"
            b"x-request-id: %b\r\n\r\n" % (len(content), new_id().encode())
        )
        self.transport.write(STATUS_LINE[problem.status] + head + content)
        self.transport.close()
