"""A recording's form: gzip of JSON, a line each. docs/observing.md has it for others."""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from quire.core.errors import ConfigError
from quire.core.version import __version__

FORMAT = 1
MOST_SECONDS = 3600.0
MOST_BYTES = 256 << 20
"""Of all its lines, unpacked."""
MOST_PACKED = 64 << 20
MOST_LINE = 32 << 20
STORIES = 16
"""Requests of which more is told each second."""
_LAST_LINE = 200  # bytes that are kept free for it
_PATH = re.compile(r"[/~.\\]|[A-Za-z]:[/\\]")
_TEXTS = ("prompt", "outputs")

Of = Literal["server", "simulation"]
Ending = Literal["stopped", "seconds", "bytes"]


@dataclass(frozen=True)
class RecordingHeader:
    """The first line. begun: the time of all others' 0, in seconds since 1970; of a simulation 0.

    text: whether prompts and outputs may be in it.
    """

    of: Of
    model: str
    begun: float
    version: str = __version__
    text: bool = False


class Writer:
    """Writes lines in order of time, until it is full.

    full: the limit that it has come to. What is written then is left out.
    """

    def __init__(
        self, path: Path, header: RecordingHeader, most_seconds: float = MOST_SECONDS
    ) -> None:
        self.full: Ending | None = None
        self.seconds = 0.0
        self._header = header
        self._most_seconds = min(most_seconds, MOST_SECONDS)
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        self._packed = gzip.GzipFile("", "wb", 6, self._file, mtime=0)  # same run, same bytes
        self._room = MOST_BYTES - _LAST_LINE
        model = {"model": name_of(header.model)}
        self._write({"quire": "recording", "format": FORMAT, **asdict(header), **model})

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state(self, state: Mapping[str, Any]) -> None:
        """Write a state of /v1/quire/state. All lines so far can be read even if no more comes."""
        model = name_of(str(state["model"]))
        self._add(state["time"], "state", {**state, "model": model})
        with self._told():
            self._packed.flush(zlib.Z_SYNC_FLUSH)

    def blocks(self, time: float, frame: bytes) -> None:
        """A frame of /v1/quire/blocks; the first one is a snapshot."""
        self._add(time, "blocks", base64.b64encode(frame).decode())

    def decisions(self, time: float, decisions: Sequence[Mapping[str, Any]]) -> None:
        """Write the decisions that are new."""
        if decisions:
            self._add(time, "decisions", decisions)

    def story(self, time: float, story: Mapping[str, Any]) -> None:
        """Write a request as in /v1/quire/requests/{id}, without its decisions, which have lines of
        their own.
        """
        if not self._header.text:
            story = {**story, **dict.fromkeys(_TEXTS)}
        self._add(time, "story", {**story, "decisions": []})

    def close(self) -> None:
        """End it. Without this last line it counts as cut off."""
        self._write({"t": self.seconds, "end": self.full or "stopped"})
        with self._told(), self._file:
            self._packed.close()

    def _add(self, time: float, kind: str, value: object) -> None:
        seconds = round(time - self._header.begun, 3)
        if seconds > self._most_seconds:
            self.full = self.full or "seconds"
        if self.full is None:
            self.seconds = max(self.seconds, seconds)  # a clock may have been set back
            self._write({"t": self.seconds, kind: value})

    def _write(self, line: Mapping[str, Any]) -> None:
        content = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if "end" not in line:
            packed = self._file.tell() + MOST_LINE
            if len(content) > min(self._room, MOST_LINE) or packed > MOST_PACKED:
                self.full = "bytes"
                return
        self._room -= len(content)
        with self._told():
            self._packed.write(content)

    @staticmethod
    @contextmanager
    def _told() -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(f"the recording cannot be written: {error.strerror}") from error


def name_of(model: str) -> str:
    """A model's name in a recording: of a path its last part, since recordings are passed on."""
    if _PATH.match(model):
        return re.split(r"[/\\]", model.rstrip("/\\"))[-1] or "model"
    return model
