"""Many clients in one thread, for one server.

A thousand threads that wait for Python's lock wake each other up again and again, and so keep
from the cores the server that is to be measured.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import closing, suppress

from attacks.target import LEFT, SOURCE, Target, status_of

_PIECE = 1 << 20  # bytes
_KEPT = 1 << 13  # bytes of an answer: its status is in them, and all of a refusal


def crowd(target: Target, requests: Sequence[bytes], clients: int, pause: float) -> None:
    """Send requests in turn, ``clients`` at once, each again when it is answered and paused."""

    async def client(number: int) -> None:
        while target.time_left > 0:
            target.answers[await _exchange(target, requests[number % len(requests)])] += 1
            number += clients
            await asyncio.sleep(min(pause, target.time_left))

    async def main() -> None:
        await asyncio.gather(*map(client, range(clients)))

    target.begin()
    asyncio.run(main())


async def _exchange(target: Target, request: bytes) -> str:
    """The status of the answer, once it has been read to its end."""
    answer = bytearray()
    with closing(socket.socket()) as connection:
        try:
            await asyncio.wait_for(_converse(target, connection, request, answer), target.time_left)
        except asyncio.TimeoutError:
            return status_of(answer) if answer else LEFT
        except OSError:
            pass
    return status_of(answer)


async def _converse(
    target: Target, connection: socket.socket, request: bytes, answer: bytearray
) -> None:
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    if target.address[0].startswith("127."):
        connection.bind((SOURCE, 0))
    await loop.sock_connect(connection, target.address)
    with suppress(ConnectionError):  # it may have answered before it had read all
        await loop.sock_sendall(connection, request)
    while piece := await loop.sock_recv(connection, _PIECE):
        answer += piece[: _KEPT - len(answer)]
