"""Quire's own traces: lengths, times and names of blocks of what was served. No text.

The first line is {"quire_trace": 1, "block_size": B, "engine": {…}}, with what holds for the
engine; each further line is a request, in order of arrival, with what became of it ("seen"). Older
recordings have neither. A block's name is a keyed hash; the key is drawn for the recording and kept
nowhere, so that nobody can look for a prompt that he guesses.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.engine.traces.request import TraceRequest

VERSION = 1
_MOST_HELD = 64 * 2**20
_ENTRY = 100  # bytes that a line takes beside its text while it waits


class TraceWriter:
    """Writes requests in the order in which they began, each as soon as all before it are known.

    OSError from ``begin``, ``end`` or ``close`` where the disk fails: then ``abandon`` it.

    engine: what holds for it, as JSON values; None: not told.
    most_held: bytes of lines that may wait for one that has not ended. Beyond that the first of
        those under way are left out, however long they run, so that memory stays bounded.
    """

    def __init__(
        self,
        path: Path,
        block_size: int,
        engine: Mapping[str, Any] | None = None,
        most_held: int = _MOST_HELD,
    ) -> None:
        """ConfigError if the file cannot be opened. An existing one is replaced."""
        self.path = path
        try:
            # Unbuffered: a trace is whole up to where its server died, or its disk was full.
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise ConfigError(f"record_trace: {error}") from error
        self._key = secrets.token_bytes(16)
        self._most_held = most_held
        self._order: deque[int] = deque()  # tickets, oldest first, of lines that are not written
        self._arrivals: dict[int, float] = {}  # of those that have not ended
        self._lines: dict[int, bytes] = {}  # of those that have
        self._held = 0  # bytes of these
        self._whole = 0  # bytes of whole lines in the file
        self._latest = 0.0
        self._tickets = count()
        try:
            told = {} if engine is None else {"engine": engine}
            self._write(_line({"quire_trace": VERSION, "block_size": block_size, **told}))
        except OSError:
            self.abandon()
            raise

    def begin(self, arrival: float) -> int:
        """A ticket for a request that arrived at ``arrival``, in seconds, and got in line now."""
        ticket = next(self._tickets)
        # Order in line is what counts; two that came at once may have overtaken each other.
        self._latest = self._arrivals[ticket] = max(self._latest, arrival)
        self._order.append(ticket)
        return ticket

    def end(self, ticket: int, request: TraceRequest | None, hashes: Sequence[bytes] = ()) -> None:
        """The request as it came to be, with its full blocks' hashes; None: leave it out."""
        arrival = self._arrivals.pop(ticket, None)
        if arrival is None:
            return  # it ran for so long that it was left out
        line = b""
        if request is not None:
            values = {
                "arrival": arrival,
                "prompt_tokens": request.prompt_tokens,
                "output_tokens": request.output_tokens,
                "n": request.n,
                "beam_search": request.beam_search,
                "max_tokens": request.max_tokens,
                "hash_ids": [self._name(block) for block in hashes],
                **(request.drafts._asdict() if request.drafts is not None else {}),
                **self._adapter(request.adapter),
                **({} if request.seen is None else {"seen": request.seen._asdict()}),
            }
            line = _line(values)
        self._lines[ticket] = line
        self._held += len(line) + _ENTRY
        while self._held > self._most_held and self._order[0] in self._arrivals:
            del self._arrivals[self._order.popleft()]
        self._write_ended()

    def close(self) -> None:
        """Write what has ended; what is still under way is left out."""
        self._arrivals.clear()
        self._order = deque(ticket for ticket in self._order if ticket in self._lines)
        self._write_ended()
        self._file.close()

    def abandon(self) -> None:
        """Give up the file, cut after its last whole line, and all that waits to be written."""
        self._order.clear()
        self._arrivals.clear()
        self._lines.clear()
        for act in (partial(self._file.truncate, self._whole), self._file.close):
            with contextlib.suppress(OSError, ValueError):  # closed, it can be cut no more
                act()

    def _write_ended(self) -> None:
        """What no longer waits for anybody, in one go: the engine waits until it is written."""
        ended = []
        while self._order and self._order[0] not in self._arrivals:
            line = self._lines.pop(self._order.popleft())
            self._held -= len(line) + _ENTRY
            ended.append(line)
        self._write(b"".join(ended))

    def _write(self, lines: bytes) -> None:
        done = 0
        try:
            while done < len(lines):
                written = self._file.write(memoryview(lines)[done:])  # perhaps a part of it
                if not written:
                    raise OSError(f"{self.path} has been closed")
                done += written
        finally:
            self._whole += lines.rfind(b"\n", 0, done) + 1

    def _adapter(self, adapter: str | None) -> dict[str, str]:
        """The hashed name of an adapter, if there is one."""
        return {} if adapter is None else {"adapter": self._name(adapter.encode())}

    def _name(self, block: bytes) -> str:
        return blake2b(block, key=self._key, digest_size=8).hexdigest()


def _line(values: object) -> bytes:
    return json.dumps(values).encode() + b"\n"
