"""Where ranks of other machines find rank 0."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from queue import Empty, SimpleQueue

from quire.core.errors import ConfigError, RankError
from quire.engine.assembly.ranks.facts import place
from quire.engine.assembly.ranks.messages import HELLO, RankHello, RankRefused
from quire.engine.assembly.ranks.team import STARTING, Team
from quire.kernels.transport import Connection, Guest, PeerError, Port

logger = logging.getLogger(__name__)

_LOOK = 0.2  # seconds between looks at whether one has failed meanwhile
_RETRY = 0.5  # seconds between calls
_MOST_WAITING = 64  # who have greeted, and are not looked at yet
_NO_RANK = "a connection from %s was refused, for it is not a rank of this engine: %s"


class Door:
    """Listens for ranks of other machines."""

    def __init__(self, host: str, port: int) -> None:
        """port: 0 is one that is free. ConfigError: it cannot be listened on."""
        try:
            self._listener = Port(host, port)
        except OSError as error:
            raise ConfigError(
                f"master_port {port} of {host} cannot be listened on: {error.strerror}"
            ) from error
        self.host, self.port = self._listener.host, self._listener.port
        self._greeted: SimpleQueue[tuple[RankHello, socket.socket]] = SimpleQueue()
        self._listener.start(self._greet, "quire-door")

    def let_in(self, team: Team, ranks: Collection[int], check: Callable[[], None]) -> None:
        """Wait for these ranks. ``check`` raises where they cannot come."""
        logger.info("waiting for %s at %s:%d", _names(ranks), self.host, self.port)
        missing, deadline = set(ranks), time.monotonic() + STARTING
        while missing:
            team.check()
            check()
            if time.monotonic() > deadline:
                raise RankError(f"{_names(missing)} did not come")
            with suppress(Empty, PeerError):
                hello, wire = self._greeted.get(timeout=_LOOK)
                self._seat(team, missing, hello, Connection(wire, team.silence))
        self.close()

    def close(self) -> None:
        self._listener.close()

    def _seat(
        self, team: Team, missing: set[int], hello: RankHello, connection: Connection
    ) -> None:
        if hello.size == team.size and hello.rank in missing:
            missing.discard(hello.rank)
            team.add(hello.rank, connection, hello.place)
            return
        why = f"rank {hello.rank} is not waited for; {_names(missing)} is"
        if hello.size != team.size:
            sizes = f"one of {hello.size}, rank 0 of {team.size} (tensor_parallel_size)"
            why = f"rank {hello.rank} is {sizes}"
        logger.warning(_NO_RANK, connection.peer, why)
        with suppress(PeerError):
            connection.send(RankRefused(why), seconds=0.0)
        connection.close()

    async def _greet(self, guest: Guest) -> None:
        try:
            hello = await guest.receive(HELLO)
        except PeerError as error:
            logger.warning(_NO_RANK, guest.host, error)
            return
        if self._greeted.qsize() < _MOST_WAITING:
            self._greeted.put((hello, guest.detach()))


def reach(rank: int, size: int, host: str, port: int) -> socket.socket:
    """The connection of one of ``size`` ranks with rank 0, which may not be there yet.

    RankError: it does not come.
    """
    deadline, said = time.monotonic() + STARTING, False
    while True:
        try:
            connection = Connection.to(host, port, STARTING)
            connection.send(RankHello(rank, size, place()))
            return connection.detach()
        except PeerError as error:
            if time.monotonic() > deadline:
                raise RankError(f"rank 0 is not at {host}:{port}: {error}") from error
            if not said:
                logger.info("waiting for rank 0 at %s:%d", host, port)
            said = True
            time.sleep(_RETRY)


def _names(ranks: Collection[int]) -> str:
    names = ", ".join(map(str, sorted(ranks)))
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"
