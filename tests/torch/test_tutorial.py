"""Everything that docs/tutorial.md says to do is done, in a copy of the sources."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.copied_tree import ROOT, CopiedTree
from support.live_server import PATIENCE
from support.pages import Block, blocks

PAGE = ROOT / "docs/tutorial.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="Quire runs without its docs")

_PATH = re.compile(r"^\| `([\w./]+)` \|", re.MULTILINE)


class Newcomer:
    """Who follows the page."""

    def __init__(self, folder: Path) -> None:
        self.tree = CopiedTree(folder)
        self._port = str(_free_port())
        self._server: subprocess.Popen[bytes] | None = None
        self._program("python", sys.executable)
        command = "from quire.tools.cli import main; raise SystemExit(main())"
        self._program("quire", f"{sys.executable} -c '{command}'")
        for name in ("torch", "installed", "installed-dev"):  # so make installs nothing
            file = self.tree.root / ".venv" / name
            file.touch()
            os.utime(file, (time.time() + 1e6,) * 2)

    def follow(self, block: Block) -> str:
        """Do what a block says; what it prints."""
        if block.file is not None:
            self.tree.write(block.file, block.text)
        elif block.kind == "diff":
            self._change(block.text)
        elif block.text == "make serve\n":
            self._serve()
        else:
            assert block.kind == "bash"
            return self._shell(block.text.replace("8000", self._port))
        return ""

    def leave(self) -> None:
        if self._server is not None:
            os.killpg(self._server.pid, signal.SIGINT)
            self._server.wait(PATIENCE)
            self._server = None

    def _program(self, name: str, program: str) -> None:
        file = self.tree.root / ".venv/bin" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        file.chmod(0o755)

    def _change(self, text: str) -> None:
        head, *lines = text.splitlines()
        old = [line[1:] for line in lines if line[0] in " -"]
        new = [line[1:] for line in lines if line[0] in " +"]
        self.tree.replace(head.removeprefix("--- "), "\n".join(old) + "\n", "\n".join(new) + "\n")

    def _serve(self) -> None:
        environment = {
            **self._environment(),
            "ARGS": f"--port {self._port} --kv-cache-memory-bytes 16MiB",
        }
        self._server = subprocess.Popen(
            ["make", "serve"], cwd=self.tree.root, env=environment, start_new_session=True
        )
        deadline = time.monotonic() + PATIENCE
        while not self._listens():
            assert self._server.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)

    def _listens(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self._port}/health").is_success
        except httpx.TransportError:
            return False

    def _shell(self, text: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.tree.root,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _environment(self) -> dict[str, str]:
        sources = ("", "tests", "src", "lab/src", "cluster/src")
        paths = os.pathsep.join(str(self.tree.root / source) for source in sources)
        environment = {**os.environ, "PYTHONPATH": paths}
        for of_a_make_that_runs_the_tests in ("MAKEFLAGS", "VENV", "TORCH", "PYTHON"):
            environment.pop(of_a_make_that_runs_the_tests, None)
        return environment


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    newcomer = Newcomer(tmp_path)
    yield newcomer
    newcomer.leave()


@pytest.mark.slow
def test_every_block_does_what_the_page_says(newcomer: Newcomer) -> None:
    for block in blocks(PAGE):
        printed = newcomer.follow(block)
        if block.prints is not None:
            assert printed == block.prints
        if "/v1/completions" in block.text:
            assert '"text":"' in printed.replace('": "', '":"')
        if "/v1/quire/decisions" in block.text:
            assert '"admit"' in printed
            newcomer.leave()


def test_the_files_on_the_way_of_a_request_are_there() -> None:
    paths = _PATH.findall(PAGE.read_text(encoding="utf-8"))
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / "src/quire" / path).exists()] == []
