"""Ends what a Ray of our own has left, if this process is ended by force.

Of what ``ray.init`` starts, most ends with who has called it. The agents that its raylet has
started go on for minutes, trying to tell a server that is gone as well. So a process that does
nothing but wait, and needs neither Ray nor Quire, holds the other end of a pipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_GRACE = 5.0  # seconds for processes to end by themselves
_DYING = 1.0  # seconds that one who is killed may take
_LOOK = 0.1


class Keeper:
    """To be told of processes while it lives, and closed when these have been ended.

    Only what it was told of is ever ended, and only if it is that process still.
    """

    def __init__(self, grace: float = _GRACE) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(grace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what is sent to a group or a terminal is not for it
            text=True,
        )

    def watch(self) -> None:
        """All processes below this one, which are to end with it."""
        told = self._process.stdin
        assert told is not None
        with contextlib.suppress(OSError):  # nobody is worth a server's end
            for pid, began in _below(os.getpid()):
                if pid != self._process.pid:
                    told.write(f"{pid} {began}\n")
            told.flush()

    def close(self) -> None:
        """Wait until all of them are gone, for at most the time that they may take."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()


def _below(root: int) -> Iterator[tuple[int, str]]:
    """The processes that descend from one, each with the time at which it began."""
    found = {}
    for entry in _PROC.iterdir():
        facts = _facts(int(entry.name)) if entry.name.isdecimal() else None
        if facts is not None:
            found[int(entry.name)] = facts
    for pid, (_, parent, began) in found.items():
        while parent != root and parent in found:
            parent = found[parent][1]
        if parent == root:
            yield pid, began


def _facts(pid: int) -> tuple[str, int, str] | None:
    """State, parent, and when it began; None: there is no such process."""
    try:
        told = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return told[0], int(told[1]), told[19]


def _alive(pid: int, began: str) -> bool:
    facts = _facts(pid)
    return facts is not None and facts[2] == began and facts[0] != "Z"


def _keep(grace: float) -> None:
    """Until the pipe is closed, however; then end what has not ended in time."""
    kept = {tuple(line.split()) for line in sys.stdin}
    left = _wait({(int(pid), began) for pid, began in kept}, grace)
    for pid, _ in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _wait(left, _DYING)


def _wait(left: set[tuple[int, str]], seconds: float) -> set[tuple[int, str]]:
    """Who is there still after at most so many seconds."""
    deadline = time.monotonic() + seconds
    while left := {one for one in left if _alive(*one)}:
        if time.monotonic() > deadline:
            break
        time.sleep(_LOOK)
    return left


if __name__ == "__main__":
    _keep(float(sys.argv[1]))
