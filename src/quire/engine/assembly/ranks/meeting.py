"""How ranks come together: started or waited for, compared, and joined into one group."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import torch

from quire.core.errors import ConfigError, RankError
from quire.engine.assembly.ranks.facts import Facts, difference, facts_of, place
from quire.engine.assembly.ranks.groups import Join, in_memory, over_network
from quire.engine.assembly.ranks.line import Line, Message
from quire.engine.assembly.ranks.processes import RankProcess, Start
from quire.engine.assembly.ranks.team import STARTING, Team
from quire.engine.config import EngineConfig
from quire.kernels.ranks import RankGroup
from quire.kernels.threads import shares_of_cores, usable_cores

logger = logging.getLogger(__name__)

_GREETING = 5.0  # seconds for a rank that has come to say which it is
_LOOK = 0.2  # seconds between looks at whether one has failed meanwhile
_MOST_STRANGERS = 64  # that are listened to at once
_NO_RANK = "whoever came from %s is no rank of ours: %s"


def threads_of(config: EngineConfig, ranks_here: int) -> int:
    """Of each rank. By default as many as torch would take (OMP_NUM_THREADS), but no more than can
    run at once."""
    return config.threads or max(1, min(torch.get_num_threads(), usable_cores()) // ranks_here)


def start_here(team: Team, config: EngineConfig) -> None:
    """The ranks of this machine, of which this process is the first."""
    count = config.tensor_parallel_size // config.nnodes
    threads, shares = threads_of(config, count), shares_of_cores(count)
    torch.set_num_threads(threads)
    if count == 1:
        return
    if shares is not None:
        team.at_end(_bound_to(shares[0]))
    for rank in range(1, count):
        cpus = None if shares is None else shares[rank]
        ours, theirs = socket.socketpair()
        start = Start.of(rank, config, threads, cpus, with_rank_0=True)
        team.add(rank, Line(ours), place(), RankProcess(start, theirs))


def _bound_to(cpus: Collection[int]) -> Callable[[], None]:
    """Bind this thread, and those that it will start; what undoes that."""
    thread, before = threading.get_native_id(), os.sched_getaffinity(0)
    os.sched_setaffinity(thread, cpus)

    def undo() -> None:
        if Path(f"/proc/self/task/{thread}").exists():
            os.sched_setaffinity(thread, before)

    return undo


class Door:
    """Where ranks of other machines knock."""

    def __init__(self, host: str, port: int) -> None:
        """port: 0, one that is free. ConfigError: it cannot be listened on."""
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.create_server(address, family=family)
        except OSError as error:
            raise ConfigError(
                f"master_port {port} of {host} cannot be listened on: {error.strerror}"
            ) from error
        self._socket.settimeout(_LOOK)
        self._listening = threading.BoundedSemaphore(_MOST_STRANGERS)
        self.host, self.port = self._socket.getsockname()[:2]

    @property
    def address(self) -> tuple[str, int]:
        """Where it is, and where another may be once it is closed."""
        return self.host, self.port

    def let_in(self, team: Team, ranks: Collection[int], check: Callable[[], None]) -> None:
        """All these. ``check`` raises where it is in vain to wait."""
        missing, deadline = set(ranks), time.monotonic() + STARTING
        logger.info("waiting for %s at %s:%d", _names(missing), self.host, self.port)
        greeted: SimpleQueue[tuple[Line, Message]] = SimpleQueue()
        while missing:
            team.check()
            check()
            with suppress(TimeoutError):
                connection, _ = self._socket.accept()
                self._hear(connection, team, greeted)
            while not greeted.empty():
                self._seat(team, missing, *greeted.get())
            if time.monotonic() > deadline:
                raise RankError(f"{_names(missing)} did not come")
        self.close()

    def close(self) -> None:
        self._socket.close()

    def _hear(
        self, connection: socket.socket, team: Team, greeted: SimpleQueue[tuple[Line, Message]]
    ) -> None:
        """What it says for a beginning, in a thread: others need not wait while it says nothing."""

        def listen() -> None:
            try:
                line = Line(connection, team.silence)
                greeted.put((line, line.receive(_GREETING)))
            except RankError as error:
                _turn_away(connection, error)
            finally:
                self._listening.release()

        if self._listening.acquire(blocking=False):
            threading.Thread(target=listen, name="quire-door", daemon=True).start()
        else:
            connection.close()

    def _seat(self, team: Team, missing: set[int], line: Line, hello: Message) -> None:
        rank, size = hello.get("rank"), hello.get("size")
        if hello["kind"] == "hello" and type(rank) is int and rank in missing and size == team.size:
            missing.discard(rank)
            team.add(rank, line, str(hello.get("place")))
            return
        why = f"rank {rank} is not waited for; {_names(missing)} is"
        if size != team.size:
            why = f"rank {rank} is one of {size}, rank 0 of {team.size} (tensor_parallel_size)"
        with suppress(RankError):
            line.send("refused", why=why)
        logger.warning(_NO_RANK, line.peer, why)
        line.close()


def _turn_away(connection: socket.socket, why: RankError) -> None:
    peer = "somewhere"
    with suppress(OSError):
        peer = str(connection.getpeername()[0])
    connection.close()
    logger.warning(_NO_RANK, peer, why)


def meet(
    team: Team, config: EngineConfig, directory: Path, instruction_set: str
) -> tuple[RankGroup, int]:
    """The group of all ranks that have come, and how many of them are on this machine.

    Raises:
        ConfigError: they do not agree.
    """
    team.arrive()
    places = [place(), *(member.place for member in team.members)]
    team.ask("meet", directory=str(directory))
    facts: Facts = json.loads(json.dumps(facts_of(config, directory, instruction_set)))
    for member, answer in zip(team.members, team.answers("facts"), strict=True):
        why = difference(facts, answer["facts"], member.rank)
        if why is not None:
            team.refuse(member, why)
    together = Counter(places)

    def go(join: Join) -> None:
        for member in team.members:
            with suppress(RankError):  # its own thread finds out why
                member.line.send("go", join=join, ranks_here=together[member.place])

    if team.door is not None and (len(together) > 1 or config.nnodes > 1):
        group = over_network(config, team.door, go)
    else:
        group = in_memory(config, instruction_set, go)
    team.begin(group)
    return group, together[places[0]]


def _names(ranks: Collection[int]) -> str:
    names = ", ".join(map(str, sorted(ranks)))
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"
