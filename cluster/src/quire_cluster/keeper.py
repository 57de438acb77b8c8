"""Ends the processes of our own Ray if this process is killed.

Most of what ``ray.init`` starts ends with its caller. But the agents that its raylet started go on
for minutes, and try to reach a server that is gone. So a process that only waits, and needs neither
Ray nor Quire, holds the other end of a pipe.
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
_DYING = 1.0  # seconds that a killed process may take
SLOWEST = _GRACE + _DYING  # seconds to be closed in
_LOOK = 0.1


class Keeper:
    """Takes note of processes while it lives, and is closed when they have ended.

    Only processes that it has noted are ever ended, and only if they are still the same ones. None
    that was there before it is noted.
    """

    def __init__(self, grace: float = _GRACE) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(grace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # signals to a process group or a terminal must not reach it
            text=True,
        )
        self._others = set(_below(os.getpid()))

    def watch(self) -> None:
        """Note the processes below this one, to be ended with it."""
        told = self._process.stdin
        assert told is not None
        with contextlib.suppress(OSError):  # the server matters more than what is left
            for pid, began in set(_below(os.getpid())) - self._others:
                told.write(f"{pid} {began}\n")
            told.flush()

    def close(self) -> None:
        """Wait until all of them are gone, for a bounded time."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()


def _below(root: int) -> Iterator[tuple[int, str]]:
    """The descendants of a process, each with the time at which it began."""
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
    """Wait until the pipe closes, for whatever reason; then end what is still running."""
    kept = {tuple(line.split()) for line in sys.stdin}
    left = _wait({(int(pid), began) for pid, began in kept}, grace)
    for pid, _ in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _wait(left, _DYING)


def _wait(left: set[tuple[int, str]], seconds: float) -> set[tuple[int, str]]:
    """The processes that are still running after this many seconds."""
    deadline = time.monotonic() + seconds
    while left := {one for one in left if _alive(*one)}:
        if time.monotonic() > deadline:
            break
        time.sleep(_LOOK)
    return left


if __name__ == "__main__":
    _keep(float(sys.argv[1]))
