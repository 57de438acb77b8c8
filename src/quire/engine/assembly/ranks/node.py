"""Ranks of another machine than rank 0's."""

from __future__ import annotations

import logging
import math
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from quire.engine.assembly.ranks.door import reach
from quire.engine.assembly.ranks.meeting import threads_of
from quire.engine.assembly.ranks.processes import SLOWEST_END, RankProcess, Start, end_all
from quire.engine.assembly.store import LAST_SECONDS
from quire.engine.config import EngineConfig
from quire.kernels.threads import shares_of_cores

logger = logging.getLogger(__name__)

_TICK = 100  # milliseconds until it is seen that a process has ended, or a signal has come
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GONE = getattr(select, "POLLRDHUP", select.POLLHUP)  # the other end is
_DRAINING = (
    "rank 0 answers what it has begun: this machine computes on until it ends, for at most %.0f "
    "seconds; a second signal ends its ranks at once"
)


def run_node(config: EngineConfig, draining: float) -> int:
    """The ranks of this machine, until rank 0 ends or one of them fails; the exit status.

    draining: seconds that they compute on after a signal has asked for the end, since rank 0, which
        may have had the same, answers what it has begun. A second signal ends them.
    """
    count = config.tensor_parallel_size // config.nnodes
    threads, shares = threads_of(config, count), shares_of_cores(count)
    size, place = count * config.nnodes, (config.master_addr, config.master_port)
    ranks = range(config.node_rank * count, (config.node_rank + 1) * count)
    connections = [reach(rank, size, *place) for rank in ranks]
    node = _Node(0.0 if config.kv_store is None else LAST_SECONDS)
    with node.hearing_signals(draining):
        for number, rank in enumerate(ranks):
            cpus = None if shares is None else shares[number]
            start = Start.of(rank, config, threads, cpus, with_rank_0=False)
            node.add(start, connections[number])
        return node.run()


class _Node:
    """Ranks of this machine, each with its connection to rank 0, which is looked at and not read.

    A rank that is stopped does not notice that rank 0 is gone: the process that started it does.
    """

    def __init__(self, last: float) -> None:
        """last: seconds that a rank may take to end, beside what every process may."""
        self._last = last
        self._processes: list[RankProcess] = []
        self._connections: list[socket.socket] = []
        self._deadline = math.inf  # to compute on

    def add(self, start: Start, connection: socket.socket) -> None:
        """Start a rank, with its connection to rank 0."""
        self._connections.append(connection.dup())
        self._processes.append(RankProcess(start, connection))

    @contextmanager
    def hearing_signals(self, draining: float) -> Iterator[None]:
        """The first says until when ranks may compute on, the second that they may not."""

        def asked(number: int, frame: FrameType | None) -> None:
            first = self._deadline == math.inf
            self._deadline = time.monotonic() + (draining if first else 0.0)

        before = {number: signal.getsignal(number) for number in _ENDING}
        heard = [number for number in _ENDING if before[number] is not signal.SIG_IGN]
        for number in heard:
            signal.signal(number, asked)
        try:
            yield
        finally:
            for number in heard:
                signal.signal(number, before[number])

    def run(self) -> int:
        """Wait until all have ended; the exit status."""
        poll, told = select.poll(), False
        for connection in self._connections:
            poll.register(connection, _GONE)
        in_time = True
        while (
            in_time and not poll.poll(_TICK) and all(one.wait(0) is None for one in self._processes)
        ):
            if self._deadline < math.inf and not told:
                logger.info(_DRAINING, self._deadline - time.monotonic())
                told = True
            in_time = time.monotonic() < self._deadline
        for connection in self._connections:
            connection.close()
        if in_time:
            self._leave_time()
        else:
            logger.error("rank 0 has not ended in time: this machine's ranks end without it")
        end_all(self._processes)
        return int(any(process.wait() for process in self._processes))

    def _leave_time(self) -> None:
        """Rank 0 is gone, or about to go with one of its ranks: the others learn it from there."""
        until = min(self._deadline, time.monotonic() + SLOWEST_END + self._last)
        for process in self._processes:
            process.wait(max(0.0, until - time.monotonic()))
