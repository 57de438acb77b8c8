"""Ranks of another machine than rank 0's."""

from __future__ import annotations

import logging
import socket
import time

from quire.assembly.ranks.facts import place
from quire.assembly.ranks.line import Line
from quire.assembly.ranks.meeting import threads_of
from quire.assembly.ranks.processes import RankProcess, Start
from quire.assembly.ranks.team import STARTING
from quire.config import EngineConfig
from quire.errors import RankError
from quire.threads import shares_of_cores

logger = logging.getLogger(__name__)

_RETRY = 0.5  # seconds


def run_node(config: EngineConfig) -> int:
    """The ranks of this machine, until rank 0 ends or one of them fails; the exit status."""
    count = config.tensor_parallel_size // config.nnodes
    threads, shares = threads_of(config, count), shares_of_cores(count)
    processes = []
    for number in range(count):
        rank, cpus = config.node_rank * count + number, None if shares is None else shares[number]
        start = Start.of(rank, config, threads, cpus, with_rank_0=False)
        connection = reach(rank, count * config.nnodes, config.master_addr, config.master_port)
        processes.append(RankProcess(start, connection))
    statuses = [process.wait() for process in processes]
    return int(any(statuses))


def reach(rank: int, size: int, host: str, port: int) -> socket.socket:
    """The connection of one of ``size`` ranks with rank 0, which may not be there yet.

    RankError: it does not come.
    """
    deadline, told = time.monotonic() + STARTING, False
    while True:
        try:
            connection = socket.create_connection((host, port), STARTING)
        except OSError as error:
            if time.monotonic() > deadline:
                raise RankError(f"rank 0 is not at {host}:{port}: {error}") from error
            if not told:
                logger.info("waiting for rank 0 at %s:%d", host, port)
            told = True
            time.sleep(_RETRY)
        else:
            connection.settimeout(None)
            Line(connection).send("hello", rank=rank, size=size, place=place())
            return connection
