"""The end: SIGTERM, while streams are running, or whatever is left of an attack."""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from typing import NamedTuple

from attacks.innocent import stream_request, text_of
from attacks.target import Limits
from attacks.victim import Victim
from attacks.wire import TimedConnection

_STREAMS = 8
_PATIENCE = 60.0  # for a stream to begin, and for it to go on
GRACE = 5.0  # seconds beyond its own timeout in which a server is gone, whatever hangs


class Shutdown(NamedTuple):
    """How a server ended: its status, None if it did not; and of its streams, how many finished.

    seconds: from SIGTERM on. bound: that it had.
    """

    status: int | None
    finished: int
    streams: int
    seconds: float
    bound: float

    @property
    def in_time(self) -> bool:
        return self.status is not None and self.seconds <= self.bound


def end(server: Victim, timeout: float) -> Shutdown:
    """Send SIGTERM, whatever the server is at, and see how it ends. timeout: its own."""
    started, bound = time.monotonic(), timeout + GRACE
    status = server.terminate(bound)
    return Shutdown(status, 0, 0, time.monotonic() - started, bound)


def shut_down(server: Victim, limits: Limits, timeout: float) -> Shutdown:
    """The same once streams have begun."""
    request = stream_request(limits)
    begun = threading.Barrier(_STREAMS + 1, timeout=_PATIENCE)
    texts: list[str | None] = []

    def client() -> None:
        answer = b""
        with (
            suppress(OSError),
            closing(TimedConnection(server.address, request, _PATIENCE)) as connection,
        ):
            answer = connection.receive()[1]
            begun.wait()
            while data := connection.receive()[1]:
                answer += data
        texts.append(text_of(answer))

    clients = [threading.Thread(target=client) for _ in range(_STREAMS)]
    for one in clients:
        one.start()
    with suppress(threading.BrokenBarrierError):
        begun.wait()
    ended = end(server, timeout)
    if ended.status is None:
        server.kill()
    for one in clients:
        one.join()
    return ended._replace(finished=sum(text is not None for text in texts), streams=len(clients))
