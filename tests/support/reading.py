"""A reader who does what a page says: types its commands, saves its files, starts its servers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from support.live_server import PATIENCE
from support.pages import Block, blocks

_PORTS = ("8000", "8010", "8100", "8200", "11434", "14579", "5557")
_SERVER = re.compile(r"^(?:\w+=\S+ +)*quire (?:serve|replay|deploy)\b")
_MADE = re.compile(r'^make serve(?: ARGS="([^"]*)")?')  # what make does is the tutorial's test
_POOL = re.compile("--kv-cache-memory-bytes|sentence-transformers/")  # encoders have none
_PROGRAM = "from quire.tools.cli import main; raise SystemExit(main())"
_PROGRAMS = {"quire": f"-c '{_PROGRAM}'", "python": ""}


class Reader:
    """Types what blocks say into a shell, in a folder of their own.

    Commands that serve are started where they stand, and serve until another wants their port, a
    line ends with ``# until Ctrl-C``, or the reader leaves.
    """

    def __init__(self, folder: Path, instead: Mapping[str, str], python: str | None = None) -> None:
        """instead: what is written here for what the page has, ports and addresses beside. python:
        one that has Quire by itself; default: this one, and the sources.
        """
        self.folder = folder
        self._python = python or sys.executable
        self._path = os.pathsep.join(sys.path if python is None else [])
        ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
        self._instead = {
            **instead,
            **{rf"\b{port}\b": free for port, free in ports.items()},
            r"(?<=//)(host|server|one|two)(?=:)": "127.0.0.1",
            r"\b10\.0\.0\.7\b": "127.0.0.1",
        }
        self._usual = {"serve": ports["8000"], "deploy": ports["8000"], "replay": ports["8010"]}
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = self._made_up()

    def follow(self, page: Path) -> None:
        """Do all of a page, and leave. AssertionError: something fails, or prints otherwise."""
        try:
            for block in blocks(page):
                if block.is_run:
                    printed = self.do(block)
                    assert block.prints in (None, printed)
        finally:
            self.leave()

    def do(self, block: Block) -> str:
        """What it prints."""
        text = block.text
        for there, here in self._instead.items():
            text = re.sub(there, here, text, flags=re.MULTILINE)
        if block.file is not None:
            (self.folder / block.file).write_text(text)
        elif block.kind == "bash":
            return "".join(self._typed(text))
        elif block.kind == "python":
            return self._run(text, self._python, "-c")
        elif block.kind == "yaml":
            yaml.safe_load(text)
        elif block.kind == "json":
            json.loads(text)
        else:
            raise AssertionError(f"nobody knows what to do with {block.kind}")
        return ""

    def leave(self) -> None:
        """End the servers, as Ctrl-C does."""
        for port in list(self._servers):
            self._end(port)

    def _typed(self, text: str) -> Iterator[str]:
        script = ""
        for line in text.replace("\\\n", " ").splitlines():
            line = _MADE.sub(r"quire serve \1", line)
            if _SERVER.match(line):
                yield self._run(script)
                script = ""
                self._serve(line)
            else:
                script += line + "\n"
        yield self._run(script)

    def _run(self, script: str, *shell: str) -> str:
        """What it prints; a server that it asks is there."""
        port = self._usual["serve"]
        if port not in self._servers and f":{port}" in script:
            self._serve("quire serve")
        done = subprocess.run(
            [*(shell or ("bash", "-euo", "pipefail", "-c")), script],
            stdin=subprocess.DEVNULL,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=1200,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _serve(self, line: str) -> None:
        command, _, remark = line.partition(" #")
        command = command.rstrip(" &")
        kind = next(word for word in command.split() if word in self._usual)
        told = re.search(r"--port (\d+)", command)
        port = told[1] if told else self._usual[kind]
        more = "" if told else f" --port {port}"
        if kind == "serve" and not _POOL.search(command):
            more += " --kv-cache-memory-bytes 16MiB"
        self._end(port)
        log = self.folder / f"{port}.log"
        with log.open("wb") as file:
            self._servers[port] = subprocess.Popen(
                ["bash", "-c", f"exec env {command}{more}"],  # so that signals are the program's
                cwd=self.folder,
                env=self._environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE
        while not _answers(f"http://127.0.0.1:{port}/{'health' * (kind != 'replay')}"):
            running = self._servers[port].poll() is None and time.monotonic() < deadline
            assert running, f"{command}{more}\n{log.read_text()}"
            time.sleep(0.1)
        if "until Ctrl-C" in remark:
            self._run(f"quire bench throughput --url http://127.0.0.1:{port}")
            self._end(port)

    def _end(self, port: str) -> None:
        server = self._servers.pop(port, None)
        if server is not None:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGINT)
            status, log = server.wait(PATIENCE), self.folder / f"{port}.log"
            assert status in (0, 130, -signal.SIGINT), log.read_text()

    def _made_up(self) -> dict[str, str]:
        """Variables of a shell whose programs are those of this Python, and whose home is here."""
        programs = self.folder / "bin"
        programs.mkdir()
        for name, given in _PROGRAMS.items():
            (programs / name).write_text(f'#!/bin/bash\nexec {self._python} {given} "$@"\n')
            (programs / name).chmod(0o755)
        home = self.folder / "home"
        home.mkdir()
        (home / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
        return {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": self._path,
            "HOME": str(home),
            "HF_HOME": str(self.folder / "hub"),
            "HF_HUB_OFFLINE": "1",
            "KEY": "a-key",
        }


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url):
            return True
    except urllib.error.HTTPError as error:
        return error.code != 503
    except OSError:
        return False


def _free_ports(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [str(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
