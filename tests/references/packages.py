"""Packages of others, fetched once into ``build/references`` by name and version.

They are read or run there, and the project ships none of them. Several test processes may ask for
one at the same time: each fetches it aside, and the first that is done names it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(os.environ.get("QUIRE_REFERENCES_FOLDER", "build/references")).resolve()

LLAMA_CPP_SOURCES = "llama-cpp-python==0.3.36"  # its sdist holds llama.cpp's sources
_PATIENCE = 300.0  # seconds for one package


class Unreachable(Exception):
    """The package is not here and cannot be fetched; the message says why, in a line."""


def llama_cpp() -> Path:
    """The folder of llama.cpp's sources: ``models/templates``, ``models/ggml-vocab-*.gguf``."""
    return next(package(LLAMA_CPP_SOURCES, source=True).glob("*/vendor/llama.cpp"))


def published_templates() -> dict[str, str]:
    """Chat templates as makers of models publish them, by file name."""
    folder = llama_cpp() / "models/templates"
    return {file.stem: file.read_text("utf-8") for file in sorted(folder.glob("*.jinja"))}


def package(requirement: str, *, source: bool = False) -> Path:
    """The folder with the unpacked wheel, or with ``source`` the sdist. Raises Unreachable."""
    folder = FOLDER / (requirement.replace("==", "-") + ("-source" if source else ""))
    if folder.exists():
        return folder
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
        archive = _download(requirement, Path(scratch), source=source)
        unpacked = Path(scratch) / "unpacked"
        if archive.suffix == ".whl":
            zipfile.ZipFile(archive).extractall(unpacked)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(unpacked, filter="data")
        try:
            unpacked.rename(folder)
        except OSError:  # another process was faster
            if not folder.exists():
                raise
    return folder


def environment(*requirements: str) -> Path:
    """The Python of a virtual environment that holds the packages. Raises Unreachable."""
    folder = FOLDER / ("environment-" + "-".join(requirements).replace("==", "-"))
    python = folder / "bin/python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", *requirements])
        (folder / "complete").touch()
    return python


def _download(requirement: str, folder: Path, *, source: bool) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    name = requirement.split("==")[0]
    kind = ["--no-binary", name] if source else ["--only-binary", ":all:"]
    _run([*pip, *kind, requirement])
    return next(file for file in folder.iterdir() if file.is_file())


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Unreachable(lines[-1] if lines else f"{command[0]} ended with {done.returncode}")
