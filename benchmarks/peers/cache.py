"""The folder with what takes long to make: environments, builds, models. Each is made once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TORCH = "torch==2.13.0"  # any other spelling may bring another build, with gigabytes of CUDA
_NOT_FOR_TEXT = ("torchvision", "torchaudio", "torchcodec")  # some fail, if built for CUDA


class PeerError(Exception):
    """A peer cannot be set up or measured; the message says why, in a line."""


class Cache:
    """Steps below one folder.

    A step's output is made again if the inputs that it was made of have changed, or if it was
    never finished.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / "log.txt"  # of all that was run

    def once(self, name: str, inputs: str, make: Callable[[Path], None]) -> Path:
        """The path ``name``, made by ``make`` unless it is there, of the same ``inputs``."""
        path, stamp = self.folder / name, self.folder / "stamps" / name.replace("/", "+")
        if stamp.exists() and stamp.read_text(encoding="utf-8") == inputs:
            return path
        stamp.unlink(missing_ok=True)
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(inputs, encoding="utf-8")
        return path

    def run(
        self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> None:
        """Run a command that writes to the log. Raises PeerError, with its last line."""
        words = [str(word) for word in command]
        with self.log.open("a+", encoding="utf-8", errors="replace") as log:
            print("$", *words, file=log, flush=True)
            begins = log.tell()
            try:
                status = subprocess.run(words, stdout=log, stderr=log, env=environment).returncode
            except OSError as error:
                raise PeerError(f"{words[0]}: {error.strerror}") from error
            if status:
                log.seek(begins)
                why = last_line(log.read())
                raise PeerError(f"{Path(words[0]).name} ended with {status}: {why} ({log.name})")

    def pip(self, python: Path, *words: str) -> None:
        self.run([python, "-m", "pip", *words])

    def environment(self, name: str, requirements: Sequence[str]) -> Path:
        """The Python of a virtual environment with what is required."""

        def install(path: Path) -> None:
            print(f"installing {', '.join(requirements)}", file=sys.stderr, flush=True)
            self.run([sys.executable, "-m", "venv", path])
            python = path / "bin" / "python"
            self.pip(python, "install", *requirements)
            for package in _NOT_FOR_TEXT:  # vLLM's hybrids ask for torchvision
                try:
                    self.run([python, "-c", f"import {package}"])
                except PeerError:
                    self.pip(python, "uninstall", "--yes", package)

        inputs = "\n".join([sys.version, *requirements])
        return self.once(f"environments/{name}", inputs, install) / "bin" / "python"


def last_line(text: str) -> str:
    """What a program said last, which is most often what went wrong; at most 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
