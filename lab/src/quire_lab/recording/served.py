"""A recording of a running server, made over HTTP."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from quire.core.errors import ConfigError, QuireError
from quire.tools.terminal.address import Address
from quire_lab.recording.form import STORIES, RecordingHeader, Writer

_EVERY = 1.0  # seconds between two states
_PATIENCE = 20.0  # seconds for which a server may be silent; it says each 15 s that it is there
_HASTE = 0.1  # seconds until somebody is heard who says stop
_TIME = struct.Struct("<16xd")  # of a frame

Frame = tuple[float, bytes]


class ServerRecording:
    """Looks at one server, and writes what it says.

    text: prompts and outputs too, which the server must show.
    """

    def __init__(self, url: str, api_key: str | None, *, text: bool) -> None:
        self._address = Address(url, api_key, _PATIENCE)
        self._text = text
        self._latest = 0  # decision
        self._frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()

    def run(
        self, path: Path, seconds: float, stop: threading.Event, say: Callable[[str], None]
    ) -> Writer:
        """Record until the file is full, or ``stop`` is set."""
        first = self._ask("/v1/quire/state")
        header = RecordingHeader(
            "server", first["model"], first["time"], first["version"], self._text
        )
        with Writer(path, header, seconds) as writer:
            threading.Thread(target=self._watch, args=(stop, say), daemon=True).start()
            while writer.full is None and not stop.is_set():
                begun = time.monotonic()
                try:
                    state = self._look(writer)
                except (QuireError, ValueError) as error:
                    say(f"{error}; trying again")
                else:
                    self._tell_stories(writer, state)
                self._take_frames(writer, begun + _EVERY, stop)
        stop.set()
        return writer

    def _look(self, writer: Writer) -> dict[str, Any]:
        state: dict[str, Any] = self._ask("/v1/quire/state")
        if state["latest_decision"] != self._latest:
            after = self._latest if state["latest_decision"] > self._latest else 0
            told = self._ask(f"/v1/quire/decisions?since={after}")
            writer.decisions(state["time"], told["data"])
            self._latest = told["latest"]
        writer.state(state)
        return state

    def _tell_stories(self, writer: Writer, state: dict[str, Any]) -> None:
        for row in state["requests"]["running"][:STORIES]:
            try:
                story = self._ask(f"/v1/quire/requests/{quote(row['id'], safe='')}")
            except QuireError:
                continue  # it has ended
            if self._text and story["prompt"] is None:
                raise ConfigError("text: the server shows none; it needs --dashboard-show-text")
            writer.story(state["time"], story)

    def _take_frames(self, writer: Writer, until: float, stop: threading.Event) -> None:
        while not stop.is_set() and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                writer.blocks(*self._frames.get(timeout=min(left, _HASTE)))

    def _watch(self, stop: threading.Event, say: Callable[[str], None]) -> None:
        """Watch the server from a thread of its own, which waits while nothing changes."""
        while not stop.is_set():
            try:
                for frame in self._frames_told():
                    self._frames.put((_TIME.unpack_from(frame)[0], frame))
            except (QuireError, binascii.Error, struct.error) as error:
                if not stop.is_set():
                    say(f"blocks: {error}; trying again")
            stop.wait(_EVERY)

    def _frames_told(self) -> Iterator[bytes]:
        with self._address.send("GET", "/v1/quire/blocks?stream=true") as reply:
            for line in reply:
                if line.startswith(b"data:"):
                    yield base64.b64decode(line[5:].strip(), validate=True)

    def _ask(self, path: str) -> Any:
        with self._address.send("GET", path) as reply:
            return json.load(reply)
