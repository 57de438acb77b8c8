"""What is written down of each request, and of each step, where that is asked for: no text."""

from __future__ import annotations

import contextlib
import csv
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.core.protocol import Request, Step, Verdict
from quire.core.scheduling.sequence import Sequence as Text
from quire.engine.events import RequestState, Taken, Watcher
from quire.engine.metrics import RequestMetrics
from quire.engine.traces.request import DraftCounts, Seen, TraceRequest
from quire.engine.traces.writer import TraceWriter
from quire.engine.work import Sight, Work, work_of

logger = logging.getLogger(__name__)

COLUMNS = ("begin", "seconds", "cpu_seconds", *Work._fields)  # of a step's row


@dataclass
class _UnderWay:
    ticket: int
    in_line: float  # on the engine's clock
    admitted: float | None = None  # the first time


class RequestRecorder(Watcher):
    """Turns the engine's requests into lines of a trace, in order of arrival.

    A request that was aborted counts as one that had no more to say; one that gave no token is
    left out.

    A diary harms nobody: whatever fails in it ends the recording, once and for all, and nothing
    is raised. What has been written stays.
    """

    def __init__(
        self,
        path: Path,
        block_size: int,
        started: float,
        *,
        drafts: bool = False,
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        """ConfigError if the file cannot be opened.

        started: the time, on the engine's clock, that the trace counts from.
        drafts: whether requests are drafted for, so that what came of it is written down.
        engine: what holds for it.
        """
        self._path = path
        self._block_size = block_size
        self._started = started
        self._drafts = drafts
        self._under_way: dict[str, _UnderWay] = {}
        # A server that ends in a hurry closes the trace while its engine's thread is in a step.
        self._lock = threading.Lock()
        self._writer: TraceWriter | None = None  # None: the recording has ended
        try:
            self._writer = TraceWriter(path, block_size, engine)
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
                ticket = self._writer.begin(arrival)
                in_line = request.arrival if request.ready is None else request.ready
                self._under_way[request.request_id] = _UnderWay(ticket, in_line)

    def decided(self, step: Step) -> None:
        for decision in step.decisions:
            if decision.what is Verdict.ADMIT:
                one = self._under_way.get(decision.request_id)
                if one is not None and one.admitted is None:
                    one.admitted = step.now

    def ended(self, state: RequestState) -> None:
        with self._harmless():
            one = self._under_way.pop(state.request.request_id, None)
            if self._writer is not None and one is not None:
                self._write(self._writer, one, state)

    def close(self) -> None:
        """Write what is still held back. Nothing can be recorded any more."""
        with self._harmless():
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _write(self, writer: TraceWriter, one: _UnderWay, state: RequestState) -> None:
        request, outputs, metrics = state.request, state.outputs, state.metrics
        longest = max(map(len, outputs))
        if not longest:
            writer.end(one.ticket, None)
            return
        tokens = [*request.prompt_token_ids, *(outputs[0] if len(outputs) == 1 else ())]
        text = Text(0, 0, tokens, request.root_hash, spans=request.spans)
        text.hash_blocks(self._block_size)
        trace = TraceRequest(
            arrival=request.arrival,
            prompt_tokens=len(request.prompt_token_ids),
            output_tokens=longest,
            n=request.params.width,
            beam_search=request.params.use_beam_search,
            max_tokens=request.max_tokens,
            drafts=DraftCounts(
                metrics.num_drafts, metrics.num_draft_tokens, metrics.num_accepted_tokens
            )
            if self._drafts
            else None,
            adapter=None if request.adapter is None else request.adapter.fingerprint.hex(),
            seen=self._seen(one, metrics),
        )
        writer.end(one.ticket, trace, text.block_hashes)

    def _seen(self, one: _UnderWay, metrics: RequestMetrics) -> Seen | None:
        """None if it never ran by itself: a session's turn may not have to be admitted."""
        if one.admitted is None or metrics.first_token_time is None:
            return None
        return Seen(
            round(one.in_line - self._started, 6),
            round(one.admitted - self._started, 6),
            round(metrics.first_token_time - self._started, 6),
            round(metrics.finished_time - self._started, 6),
            metrics.num_output_tokens,
            metrics.cached_tokens,
            metrics.num_preemptions,
        )

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
        self._under_way.clear()
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None


class StepRecorder(Watcher):
    """Writes for every step what it had to do and how long it took, as a row of a CSV file.

    A step lasts from the end of the one before it until what it gave has been taken in: what the
    thread does between steps, to let requests in say, is the next one's. After a rest it begins
    when the first request is ready, so that to wake up is a part of it. Its processor time is that
    of the engine's thread, which takes part in all that is computed and sleeps while it has to
    wait: about what the step takes where nobody else wants the cores.

    A disk that fails ends the recording, once and for all; what has been written stays.
    """

    def __init__(
        self,
        path: Path,
        sights: Sequence[Sight],
        started: float,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        """ConfigError if the file cannot be opened. ``started``: when the clock showed 0 s."""
        self._sights, self._started = sights, started
        self._clock, self._processor = clock, processor
        self._last: float | None = None  # when the last step ended; None: nothing to do since
        self._used = 0.0  # processor time until then
        self._woken = False  # the step under way is the first after a rest
        self._path, self._ended = path, False
        try:
            self._file = path.open("w", encoding="ascii", newline="")
        except OSError as error:
            raise ConfigError(f"record_steps: {error}") from error
        self._rows = csv.writer(self._file, lineterminator="\n")
        self._rows.writerow(COLUMNS)

    def began(self, request: Request) -> None:
        self._begin(request.arrival if request.ready is None else request.ready)

    def took(self, taken: Taken) -> None:
        if self._ended:
            return
        step = taken.step
        begin = self._begin(step.now)
        now, used = self._clock(), self._processor()
        work = work_of(step, self._sights)._replace(woken=int(self._woken))
        if work.num_tokens or step.moves:
            times = begin - self._started, now - begin, used - self._used
            with self._on_disk():
                self._rows.writerow([*(f"{one:.7f}" for one in times), *work])
        self._last, self._used, self._woken = now, used, False

    def rested(self) -> None:
        self._last = None
        with self._on_disk():
            self._file.flush()

    def _begin(self, time: float) -> float:
        """When the step began that is under way, or is about to be."""
        if self._last is None:
            self._last, self._used, self._woken = time, self._processor(), True
        return self._last

    def close(self) -> None:
        with self._on_disk():
            self._file.close()

    @contextlib.contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._ended:  # what is still to be written fails once more at the end
                text = "record_steps: the recording to %s has ended, serving goes on: %s"
                logger.error(text, self._path, error)
            self._ended = True
