"""The end: SIGTERM, while streams are running."""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from typing import NamedTuple

from attacks.innocent import stream_request, text_of
from attacks.target import Limits
from attacks.victim import Victim
from attacks.wire import TimedConnection

_STREAMS = 8
_PATIENCE = 60.0  # longer than a server may take to let its requests finish


class Shutdown(NamedTuple):
    """How a server ended: its status, None if it did not; and of its streams, how many finished."""

    status: int | None
    finished: int
    streams: int


def shut_down(server: Victim, limits: Limits) -> Shutdown:
    """Send SIGTERM once all streams have begun."""
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
    status = server.terminate(_PATIENCE)
    for one in clients:
        one.join()
    return Shutdown(status, sum(text is not None for text in texts), _STREAMS)
