"""What each step had to do and how long it took, as rows of a CSV file."""

from __future__ import annotations

import csv
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from quire.core.errors import ConfigError
from quire.core.protocol import Request, Sight, Step, Work, work_of
from quire.engine.tracing import Watcher

logger = logging.getLogger(__name__)

COLUMNS = ("begin", "seconds", "cpu_seconds", *Work._fields)


class StepRecorder(Watcher):
    """Writes a row for every step. Told in the engine's thread.

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

    def took(self, step: Step, *, more: bool) -> None:
        if self._ended:
            return
        begin = self._begin(step.now)
        now, used = self._clock(), self._processor()
        work = work_of(step, self._sights)._replace(woken=int(self._woken))
        if work.num_tokens or step.moves:
            times = begin - self._started, now - begin, used - self._used
            with self._on_disk():
                self._rows.writerow([*(f"{one:.7f}" for one in times), *work])
        self._last, self._used, self._woken = (now if more else None), used, False
        if not more:
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

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._ended:  # what is still to be written fails once more at the end
                text = "record_steps: the recording to %s has ended, serving goes on: %s"
                logger.error(text, self._path, error)
            self._ended = True
