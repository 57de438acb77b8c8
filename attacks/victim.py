"""The server under attack: its process, its memory, its log, and what it holds."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil

from quire.tools.doctor.machine import seconds_of_tree
from quire_lab.bench.processes import ServerProcess, serving

_LONGEST_SETTLING = 10.0  # seconds until what is not needed has been given back
_HELD = ("used", "reserved", "internal", "external")  # states of a KV slot that somebody holds


class Holdings(NamedTuple):
    """What a process holds."""

    rss: int
    threads: int
    files: int


class Victim:
    """A running ``quire serve``."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._process = psutil.Process(server.process.pid)
        parts = urlsplit(server.url)
        assert parts.hostname is not None and parts.port is not None
        self.address = (parts.hostname, parts.port)

    @property
    def alive(self) -> bool:
        return self.status is None

    @property
    def num_tracebacks(self) -> int:
        return self._server.log().count("Traceback (most recent call last)")

    def log(self) -> str:
        return self._server.log()

    def holdings(self) -> Holdings:
        """Nothing, once it has ended."""
        try:
            with self._process.oneshot():
                rss, threads = self._process.memory_info().rss, self._process.num_threads()
            return Holdings(rss, threads, self._process.num_fds())
        except psutil.NoSuchProcess:  # or a zombie
            return Holdings(0, 0, 0)

    def settled(self, rss: float = 0.0) -> Holdings:
        """What it holds once that is no more than ``rss``, or after a while."""
        deadline = time.monotonic() + _LONGEST_SETTLING
        while (held := self.holdings()).rss > rss and time.monotonic() < deadline:
            time.sleep(0.2)
        return held

    def forget_peak(self) -> None:
        """Begin to measure the peak of its memory anew."""
        with suppress(OSError):  # not Linux: the peak stays that of its life
            Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def processor_seconds(self) -> float:
        """That it and all its processes have had."""
        return seconds_of_tree(self._process)

    def peak_rss(self) -> int:
        return self._server.peak_rss() or self.holdings().rss

    def num_requests(self) -> int:
        """Running and waiting."""
        return sum(map(int, self._metric(r"num_requests_(?:running|waiting)\{[^}]*\}")))

    def num_admitted(self) -> int:
        """Requests that the scheduler has let in."""
        return sum(map(int, self._metric(r'decisions_total\{[^}]*verdict="admit"[^}]*\}')))

    def slots_held(self) -> int:
        """Slots of the KV pool that somebody holds."""
        states = "|".join(_HELD)
        return sum(map(int, self._metric(rf'kv_cache_slots\{{[^}}]*state="(?:{states})"[^}}]*\}}')))

    @property
    def status(self) -> int | None:
        """With which it has ended, if it has."""
        return self._server.process.poll()

    def terminate(self, patience: float) -> int | None:
        """Send SIGTERM; the status with which it ends, if it does in time."""
        self._server.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            return self._server.process.wait(patience)
        return None

    def kill(self) -> None:
        self._server.process.kill()

    def _metric(self, pattern: str) -> list[float]:
        """The values of a metric; OSError if the server does not tell."""
        host, port = self.address
        with urlopen(f"http://{host}:{port}/metrics", timeout=5.0) as answer:
            text = answer.read().decode()
        return [float(value) for value in re.findall(rf"^quire:{pattern} (\S+)$", text, re.M)]


@contextmanager
def victim(flags: Sequence[str]) -> Iterator[Victim]:
    """``quire serve FLAGS``, stopped at the end, by force if it must be."""
    with serving(flags) as server:
        yield Victim(server)
