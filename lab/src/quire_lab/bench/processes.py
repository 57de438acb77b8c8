"""Measurements in processes of their own, so that none warms or burdens another."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError
from urllib.request import urlopen

from quire.core.errors import EngineError

_LONGEST_START = 600.0  # seconds
_LONGEST_STOP = 20.0
_POLL = 0.01


@dataclass(frozen=True)
class ServerProcess:
    """A running ``quire serve``, or ``quire deploy``."""

    url: str
    process: subprocess.Popen[bytes]
    start_seconds: float  # from the command to the first healthy answer
    _log: IO[str]

    def peak_rss(self) -> int | None:
        return peak_rss(self.process.pid)

    def log(self) -> str:
        """The server's output, stdout and stderr."""
        return _text(self._log)


def run_bench(arguments: Sequence[str]) -> dict[str, Any]:
    """The report of ``quire bench ARGUMENTS --json`` in a new process. Raises EngineError."""
    command = [sys.executable, "-m", "quire", "bench", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise EngineError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@contextmanager
def serving(arguments: Sequence[str], command: str = "serve") -> Iterator[ServerProcess]:
    """``quire serve ARGUMENTS`` (or ``deploy``) on a free loopback port, healthy; ended with it.

    Raises EngineError, with the end of its log, if it does not start.
    """
    words = [sys.executable, "-m", "quire", command, *arguments]
    with tempfile.TemporaryFile("w+") as log:
        started = time.perf_counter()
        process = subprocess.Popen(
            [*words, "--host", "127.0.0.1", "--port", "0"], stdout=log, stderr=log
        )
        try:
            url = _wait_until_healthy(process, log, started + _LONGEST_START)
            yield ServerProcess(url, process, time.perf_counter() - started, log)
        finally:
            stop(process)


def stop(process: subprocess.Popen[Any]) -> None:
    """End it, if it has not ended, and wait for that."""
    process.terminate()
    try:
        process.wait(_LONGEST_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_until_healthy(process: subprocess.Popen[bytes], log: IO[str], deadline: float) -> str:
    url = None
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise EngineError(f"the server ended with {process.returncode}:\n{_text(log)[-2000:]}")
        if url is None:  # uvicorn says which port the system has picked
            found = re.search(r"running on (http://\S+)", _text(log))
            url = found[1] if found else None
        if url is not None:
            try:
                with urlopen(f"{url}/health"):
                    return url
            except URLError:
                pass
        time.sleep(_POLL)
    raise EngineError(
        f"the server was not healthy in {_LONGEST_START:.0f} s:\n{_text(log)[-2000:]}"
    )


def _text(log: IO[str]) -> str:
    log.seek(0)
    return log.read()


def peak_rss(pid: int | None = None) -> int | None:
    """Peak resident bytes of a process (default: this one); None where the system does not tell.

    Not getrusage's ru_maxrss, where avoidable: on Linux that begins at the parent's.
    """
    try:
        status = Path(f"/proc/{pid or os.getpid()}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        if pid is not None or sys.platform == "win32":
            return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
