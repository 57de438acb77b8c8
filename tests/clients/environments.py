"""Where clients are installed: each kind apart from the project and from the others."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.peers.cache import TORCH, Cache, PeerError

SCRIPTS = Path(__file__).resolve().parent / "scripts"


class Install(Protocol):
    """Makes an environment, unless it is there, and gives the command that runs a script in it."""

    def __call__(self, cache: Cache, script: str) -> Sequence[str]: ...


@dataclass(frozen=True)
class Pip:
    """A virtual environment. torch: a package needs it, and may not bring one with CUDA."""

    name: str
    packages: Sequence[str]
    torch: bool = False

    def __call__(self, cache: Cache, script: str) -> Sequence[str]:
        def make(path: Path) -> None:
            cache.run([sys.executable, "-m", "venv", path])
            pip = path / "bin/pip"
            cache.run([pip, "install", "--quiet", "--upgrade", "pip"])
            if self.torch:
                cache.run([pip, "install", "--quiet", TORCH])
            cache.run([pip, "install", "--quiet", *self.packages])

        inputs = " ".join([*self.packages, *([TORCH] if self.torch else [])])
        python = cache.once(self.name, inputs, make) / "bin/python"
        return [str(python), str(SCRIPTS / script)]


@dataclass(frozen=True)
class Npm:
    """A folder of Node's, into which the scripts are linked, so that they find their modules."""

    name: str
    packages: Sequence[str]

    def __call__(self, cache: Cache, script: str) -> Sequence[str]:
        npm, node = shutil.which("npm"), shutil.which("node")
        if npm is None or node is None:
            raise PeerError("there is no Node here")

        def make(path: Path) -> None:
            path.mkdir()
            (path / "package.json").write_text(json.dumps({"private": True}), encoding="utf-8")
            cache.run([npm, "install", "--prefix", path, "--no-fund", "--no-audit", *self.packages])

        folder = cache.once(self.name, " ".join(self.packages), make)
        link = folder / "scripts"
        if not link.is_symlink():
            link.symlink_to(SCRIPTS)
        # Modules are looked for beside the path as it is given.
        flags = ["--preserve-symlinks", "--preserve-symlinks-main"]
        return [node, *flags, str(link / script)]


@dataclass(frozen=True)
class Given:
    """Somebody's environment, whose interpreter a variable names: it takes too long to make."""

    variable: str

    def __call__(self, cache: Cache, script: str) -> Sequence[str]:
        if self.variable not in os.environ:
            raise PeerError(f"{self.variable} names no interpreter")
        return [os.environ[self.variable], str(SCRIPTS / script)]
