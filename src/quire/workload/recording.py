"""Quire's own traces: lengths, times and names of blocks of what was served. No text.

The first line is {"quire_trace": 1, "block_size": B}; each further line is a request, in order of
arrival. A block's name is a keyed hash; the key is drawn for the recording and kept nowhere, so
that nobody can look for a prompt that he guesses.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count
from pathlib import Path

from quire.errors import ConfigError
from quire.workload.jsonl_traces import hashed_content
from quire.workload.request import TraceRequest
from quire.workload.rows import Clock, Row, json_rows

VERSION = 1
_HEADER = ("quire_trace", "block_size")
_FIELDS = (
    "arrival", "prompt_tokens", "output_tokens", "n", "beam_search", "max_tokens", "hash_ids"
)  # fmt: skip


class TraceWriter:
    """Writes requests in the order in which they began, each as soon as all before it are known."""

    def __init__(self, path: Path, block_size: int) -> None:
        """ConfigError if the file cannot be written. An existing one is replaced."""
        try:
            # Line by line, so that a trace is whole up to where its server died.
            self._file = path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            raise ConfigError(f"record_trace: {error}") from error
        self._key = secrets.token_bytes(16)
        # Lines of those that have begun, in order; None where it has not ended.
        self._lines: dict[int, str | None] = {}
        self._arrivals: dict[int, float] = {}  # of those that have not ended
        self._latest = 0.0
        self._tickets = count()
        self._write({"quire_trace": VERSION, "block_size": block_size})

    def begin(self, arrival: float) -> int:
        """A ticket for a request that arrived at ``arrival``, in seconds, and got in line now."""
        ticket = next(self._tickets)
        # Order in line is what counts; two that came at once may have overtaken each other.
        self._latest = self._arrivals[ticket] = max(self._latest, arrival)
        self._lines[ticket] = None
        return ticket

    def end(self, ticket: int, request: TraceRequest | None, hashes: Sequence[bytes] = ()) -> None:
        """The request as it came to be, with its full blocks' hashes; None: leave it out."""
        arrival, line = self._arrivals.pop(ticket), ""
        if request is not None:
            values = {
                "arrival": arrival,
                "prompt_tokens": request.prompt_tokens,
                "output_tokens": request.output_tokens,
                "n": request.n,
                "beam_search": request.beam_search,
                "max_tokens": request.max_tokens,
                "hash_ids": [self._name(block) for block in hashes],
            }
            line = json.dumps(values) + "\n"
        self._lines[ticket] = line
        for first in list(self._lines):
            if first in self._arrivals:
                return
            self._file.write(self._lines.pop(first) or "")

    def close(self) -> None:
        """Write what has ended; what is still under way is left out."""
        for line in self._lines.values():
            self._file.write(line or "")
        self._lines.clear()
        self._file.close()

    def _name(self, block: bytes) -> str:
        return blake2b(block, key=self._key, digest_size=8).hexdigest()

    def _write(self, values: object) -> None:
        self._file.write(json.dumps(values) + "\n")


def read_recording(path: Path) -> Iterator[TraceRequest]:
    """The requests of a trace that ``quire serve --record-trace`` wrote."""
    rows, clock = json_rows(path), Clock()
    header = next(rows, None)
    if header is None or header.values.get("quire_trace") != VERSION:
        raise ConfigError(f"{path} is not a trace that quire recorded (version {VERSION})")
    header.only(_HEADER)
    block_size = header.tokens("block_size", 1)
    for row in rows:
        row.only(_FIELDS)
        yield _request(row, clock.arrival(row, row.seconds("arrival")), block_size)


def _request(row: Row, arrival: float, block_size: int) -> TraceRequest:
    prompt, output = row.tokens("prompt_tokens", 1), row.tokens("output_tokens", 1)
    beam_search, limit = row.get("beam_search"), None
    if not isinstance(beam_search, bool):
        raise row.error(f"beam_search must be true or false, got {beam_search!r}")
    if row.values.get("max_tokens") is not None:
        limit = row.tokens("max_tokens", output)
    content = hashed_content(row, row.get("hash_ids"), block_size, prompt + output)
    return TraceRequest(
        arrival, prompt, output, row.tokens("n", 1), beam_search, limit, content
    )  # fmt: skip
