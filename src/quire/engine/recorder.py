"""What is written down of each request when a trace is recorded: no text."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

from quire.memory import hash_blocks
from quire.protocol import Request
from quire.tracing import Standing, Watcher
from quire.workload import DraftCounts, TraceRequest, TraceWriter

logger = logging.getLogger(__name__)


class RequestRecorder(Watcher):
    """Turns the engine's requests into lines of a trace, in order of arrival.

    A request that was aborted counts as one that had no more to say; one that gave no token is
    left out.

    A diary harms nobody: whatever fails in it ends the recording, once and for all, and nothing
    is raised. What has been written stays.
    """

    def __init__(
        self, path: Path, block_size: int, started: float, *, drafts: bool = False
    ) -> None:
        """ConfigError if the file cannot be opened.

        started: the time, on the engine's clock, that the trace counts from.
        drafts: whether requests are drafted for, so that what came of it is written down.
        """
        self._path = path
        self._block_size = block_size
        self._started = started
        self._drafts = drafts
        self._tickets: dict[str, int] = {}
        # A server that ends in a hurry closes the trace while its engine's thread is in a step.
        self._lock = threading.Lock()
        self._writer: TraceWriter | None = None  # None: the recording has ended
        try:
            self._writer = TraceWriter(path, block_size)
        except OSError as error:
            self._give_up(error)

    @property
    def recording(self) -> bool:
        """Whether requests are still written down."""
        return self._writer is not None

    def began(self, request: Request) -> None:
        with self._harmless():
            if self._writer is not None:
                arrival = max(0.0, request.arrival - self._started)
                self._tickets[request.request_id] = self._writer.begin(arrival)

    def ended(self, request: Request, standing: Standing) -> None:
        with self._harmless():
            ticket = self._tickets.pop(request.request_id, None)
            if self._writer is not None and ticket is not None:
                self._write(self._writer, ticket, request, standing)

    def close(self) -> None:
        """Write what is still held back. Nothing can be recorded any more."""
        with self._harmless():
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _write(
        self, writer: TraceWriter, ticket: int, request: Request, standing: Standing
    ) -> None:
        params, outputs, metrics = request.params, standing.outputs, standing.metrics
        longest = max(map(len, outputs))
        if not longest:
            writer.end(ticket, None)
            return
        tokens = [*request.prompt_token_ids, *(outputs[0] if len(outputs) == 1 else ())]
        hashes = hash_blocks(request.root_hash, tokens, self._block_size)
        trace = TraceRequest(
            arrival=request.arrival,
            prompt_tokens=len(request.prompt_token_ids),
            output_tokens=longest,
            n=params.width,
            beam_search=params.use_beam_search,
            max_tokens=request.max_tokens,
            drafts=DraftCounts(
                metrics.num_drafts, metrics.num_draft_tokens, metrics.num_accepted_tokens
            )
            if self._drafts
            else None,
            adapter=None if request.adapter is None else request.adapter.fingerprint.hex(),
        )
        writer.end(ticket, trace, hashes)

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        text = "record_trace: the recording to %s has ended, serving goes on: %s"
        logger.error(text, self._path, error, exc_info=not isinstance(error, OSError))
        self._tickets.clear()
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
