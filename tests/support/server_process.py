"""A server in a process of its own, for signals, exit statuses and limits of files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import httpx

from support.live_server import MODEL

SCRIPTED = """
import sys, time
from pathlib import Path
from support.live_server import scripted_engine
from quire.http.config.server import ServerConfig
from quire.engine.recorder import RequestRecorder
from quire.http.guards.listening import bound
from quire.http.app import create_app
from quire.http.serving import run_server
engine, executor = scripted_engine()
engine.events.add(RequestRecorder(Path(sys.argv[1]), 4, time.monotonic()))
{setup}
config = ServerConfig(host="127.0.0.1", port=0)
try:
    with bound(config.host, config.port) as sockets:
        status = run_server(create_app(engine, ["demo"], config), config, sockets)
finally:
    engine.close()
raise SystemExit(status)
"""
"""A program that serves a scripted engine, recorded to its first argument, after ``setup``."""


def gone(pid: int) -> bool:
    """Or a zombie, which a parent that is gone itself leaves to init."""
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True


class ServerProcess:
    """``python`` with these arguments, killed if it takes longer than ``patience``.

    stalls: nobody reads its log once it listens. within: a command that runs it.
    """

    def __init__(
        self,
        *arguments: str,
        patience: float = 200.0,  # a machine that many share takes a minute to start one
        stalls: bool = False,
        within: Sequence[str] = (),
    ) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._patience = patience
        self.log = ""
        self.process = subprocess.Popen(
            [*within, sys.executable, *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._started = threading.Event()
        self._going_on = threading.Event()
        if not stalls:
            self._going_on.set()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.read_on()
        self._reader.join()

    def read_on(self) -> None:
        """Read its log again."""
        self._going_on.set()

    @property
    def url(self) -> str:
        """Once it listens."""
        assert self._started.wait(self._patience), self.log
        url = re.search(r"http://127.0.0.1:[1-9]\d+", self.log)
        assert url is not None, self.log
        return url[0]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def complete(self, **body: object) -> httpx.Response:
        body = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 3, **body}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=self._patience)

    def ended(self) -> int:
        """Its exit status."""
        status = self.process.wait(self._patience)
        self._reader.join()
        assert "Traceback" not in self.log, self.log
        return status

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.log += line
                if "running on" in line:
                    self._started.set()
                    self._going_on.wait()
        self._started.set()
