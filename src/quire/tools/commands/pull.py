"""``quire pull``: downloads the files that Quire needs of a model on Hugging Face."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from quire.core.errors import ModelError
from quire.models.hub import (
    RemoteFile,
    cache_directory,
    files_of,
    gguf_file,
    gguf_files,
    snapshot,
    split_file,
)
from quire.tools.commands.command import Command
from quire.tools.commands.text import size
from quire.tools.terminal.screen import harmless

_SHOWN = 6  # files, the largest


def add_pull(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="model on Hugging Face, such as Qwen/Qwen2.5-0.5B-Instruct"
    )
    parser.add_argument(
        "--revision", metavar="REVISION", help="branch, tag or commit (default: main)"
    )
    add_download_dir(parser)


def add_download_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--download-dir", metavar="DIRECTORY", help="directory of models (default: Hugging Face's "
        "cache, which HF_HOME moves)",
    )  # fmt: skip


def pull(arguments: argparse.Namespace) -> int:
    """Download the files that are missing; the exit status."""
    name, revision, directory = arguments.name, arguments.revision, arguments.download_dir
    if Path(name).is_dir():
        raise ModelError(f"{name} is a directory, which can be served as it is")

    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    logging.getLogger().setLevel(logging.WARNING)  # the rest logs every HTTP request
    disable_progress_bars()
    repository, wanted = split_file(name)
    if wanted is not None:
        files = gguf_files(repository, wanted, revision, directory)
    else:
        files = files_of(name, revision, directory)
        _check_weights(name, files)
    missing = sum(file.num_bytes for file in files if not file.is_here)
    _check_space(cache_directory(directory), missing)
    print(harmless("\n".join(_describe(name, files, missing))), file=sys.stderr)
    if sys.stderr.isatty():
        enable_progress_bars()
    if wanted is not None:
        print(gguf_file(repository, wanted, revision, directory))
    else:
        print(snapshot(name, revision, directory))
    return 0


def _check_weights(name: str, files: Sequence[RemoteFile]) -> None:
    if not any(file.name.endswith(".safetensors") for file in files):
        raise ModelError(
            f"{name} has no safetensors files, so Quire cannot serve it. Pickled weights (.bin, "
            ".pt) are not read; a GGUF file is pulled as NAME:FILE. Look for another repository "
            "of the same model"
        )
    if not any(file.name == "config.json" for file in files):
        raise ModelError(f"{name} has no config.json, so Quire cannot serve it")


def _check_space(directory: Path, needed: int) -> None:
    """ModelError if the disk is too small, before a byte is written."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise ModelError(
            f"the download takes {size(needed)}, but only {size(free)} are free in {directory}: "
            "make room or choose another --download-dir"
        )


def _describe(name: str, files: Sequence[RemoteFile], missing: int) -> list[str]:
    total = sum(file.num_bytes for file in files)
    todo = f"{size(missing)} to download" if missing else "all downloaded"
    lines = [f"{name}: {len(files)} file{'s' * (len(files) > 1)}, {size(total)}, {todo}"]
    lines += [f"  {size(file.num_bytes):>10}  {file.name}" for file in files[:_SHOWN]]
    if len(files) > _SHOWN:
        rest = sum(file.num_bytes for file in files[_SHOWN:])
        lines.append(f"  {size(rest):>10}  in {len(files) - _SHOWN} more files")
    return lines


COMMAND = Command(add_pull, pull)
