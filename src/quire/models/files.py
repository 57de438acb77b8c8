"""Reads files that others have written, without trust: regular files of bounded size."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from quire.core.errors import ModelError

MOST_BYTES = 16 << 20
"""Of a file that is read whole; configs and chat templates have some thousands."""

_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)  # to open a pipe does not wait for a writer


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """The text of a plain file. OSError or ValueError if it is none, or is too large."""
    with os.fdopen(os.open(path, _READ), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    return content.decode()


def read_object(path: Path, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """The JSON object that a plain file holds.

    Raises:
        ModelError: there is no such file, or it holds something else.
    """
    values = read_json(path, most_bytes)
    if not isinstance(values, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return values


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """The same of any JSON value."""
    try:
        return json.loads(read_text(path, most_bytes))
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except RecursionError:
        raise ModelError(f"{path} cannot be read: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{path} cannot be read: {reason}") from error


def check_plain(path: Path, most_bytes: int | None = None) -> None:
    """ModelError if there is something at ``path``, or behind its links, that is no plain file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{path} is no plain file")
    if most_bytes is not None and status.st_size > most_bytes:
        raise ModelError(f"{path} has {status.st_size:,} bytes, more than {most_bytes:,}")
