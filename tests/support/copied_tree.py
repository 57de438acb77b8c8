"""A copy of the sources that may be changed, and processes that import it in their place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LEFT = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.so")
_FIND_COMPILED = """import importlib.util
for module in ("quire.kernels._native", "quire.capabilities.speculation._native"):
    if (found := importlib.util.find_spec(module)) is not None:
        print(module, found.origin)
"""
# An installation that points at the sources (pip install --editable) goes before PYTHONPATH.
POINTS_NOWHERE = """import sys
sys.meta_path[:] = [one for one in sys.meta_path if "Redirecting" not in type(one).__name__]
"""


@cache
def _compiled() -> dict[str, str]:
    """Files of what is written in C++, by module; without importing anything here."""
    run = subprocess.run([sys.executable, "-c", _FIND_COMPILED], capture_output=True, text=True)
    return dict(line.split(" ", 1) for line in run.stdout.splitlines())


class CopiedTree:
    """The copy. Each change has a time of its own, so that Python compiles it anew.

    environment: of processes that are to import it.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.copytree(ROOT, self.root, ignore=_LEFT)
        for module, file in _compiled().items():
            shutil.copy(file, self.root.joinpath("src", *module.split(".")[:-1]))
        self.root.joinpath("sitecustomize.py").write_text(POINTS_NOWHERE)
        self._changes = 0
        sources = ("", "tests", "src", "lab/src", "cluster/src")
        self.paths = [str(self.root / source) for source in sources]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(self.paths)}
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the copy is run often

    def write(self, file: str, text: str) -> None:
        """Also a new file."""
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        self._changes += 1
        later = path.stat().st_mtime + 10 * self._changes
        os.utime(path, (later, later))

    def replace(self, file: str, old: str, new: str) -> None:
        """AssertionError: ``old`` is not there, or more than once."""
        text = self.root.joinpath(file).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} has {text.count(old)} times: {old}"
        self.write(file, text.replace(old, new))

    def run(self, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """A Python in the copy, whose ``quire`` is the copy's."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
