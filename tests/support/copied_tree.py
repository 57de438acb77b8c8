"""A copy of the sources that may be changed, and processes that import it in their place."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LEFT = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.so")
_COMPILED = ("quire.kernels._native", "quire.capabilities.speculation._native")
# An installation that points at the sources (pip install --editable) goes before PYTHONPATH.
_POINTS_ELSEWHERE = """import sys
sys.meta_path[:] = [one for one in sys.meta_path if "Redirecting" not in type(one).__name__]
"""


class CopiedTree:
    """The copy. Each change has a time of its own, so that Python compiles it anew."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.copytree(ROOT, self.root, ignore=_LEFT)
        for module in _COMPILED:
            found = importlib.util.find_spec(module)
            if found is not None and found.origin is not None:
                room = self.root.joinpath("src", *module.split(".")[:-1])
                shutil.copy(found.origin, room)
        self.root.joinpath("sitecustomize.py").write_text(_POINTS_ELSEWHERE)
        self._changes = 0

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
        sources = ("", "tests", "src", "lab/src", "cluster/src")
        paths = os.pathsep.join(str(self.root / source) for source in sources)
        environment = {**os.environ, "PYTHONPATH": paths}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the copy is run often
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
