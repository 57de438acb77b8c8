"""Ranks as processes of this machine: started, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quire.engine.config import EngineConfig
from quire.kernels.threads import wait_briefly

SLOWEST_END = 2.0  # seconds until a process that does not end is killed
_MODULE = "quire.engine.assembly.ranks"


@dataclass(frozen=True)
class Start:
    """What a process is told when it is started, over its standard input.

    That is left open: when it is closed, the process that started this one is gone, and so it ends.
    """

    rank: int
    config: dict[str, Any]  # the fields of its EngineConfig
    threads: int
    cpus: list[int] | None  # those that it is bound to
    with_rank_0: bool  # whether rank 0 has started it, and so knows where the model is

    @classmethod
    def of(
        cls,
        rank: int,
        config: EngineConfig,
        threads: int,
        cpus: Collection[int] | None,
        *,
        with_rank_0: bool,
    ) -> Start:
        bound = None if cpus is None else sorted(cpus)
        return cls(rank, asdict(config), threads, bound, with_rank_0)


class RankProcess:
    """The process of a rank, which finds rank 0 at the other end of a socket."""

    def __init__(self, start: Start, connection: socket.socket) -> None:
        """The socket is the process's from now on."""
        wait_briefly()
        with connection:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(connection.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[connection.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C in a terminal is for the process that started it
            )
        self.rank = start.rank
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, as will be noticed
            self._process.stdin.write(json.dumps(asdict(start)).encode() + b"\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, seconds: float | None = None) -> int | None:
        """Its exit status; None: it has not ended in time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def why_it_ended(self, seconds: float) -> str | None:
        """The reason, for people; None: it has not ended within ``seconds``."""
        status = self.wait(seconds)
        if status is None:
            return None
        if status < 0:
            return f"it was ended by signal {-status} ({signal.Signals(-status).name})"
        return f"it ended with status {status}"

    def let_go(self) -> None:
        """Let it end by itself."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        """End it by force, also where it has been stopped."""
        self._process.kill()
        self._process.wait()


def end_all(processes: Sequence[RankProcess], last: float = 0.0) -> None:
    """By themselves, or else by force.

    last: seconds for what they may still have to do.
    """
    for process in processes:
        process.let_go()
    deadline = time.monotonic() + SLOWEST_END + last
    for process in processes:
        if process.wait(max(0.0, deadline - time.monotonic())) is None:
            process.kill()
