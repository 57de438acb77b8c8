"""Figures over time, in bounded memory: means over intervals that double when there are many."""

from __future__ import annotations

from operator import add
from typing import NamedTuple

from quire.core.memory import Usage

MOST_POINTS = 512


class Point(NamedTuple):
    """The state of one interval. All but the last three are means over its time."""

    start: float  # seconds
    seconds: float  # during which steps ran; the rest of the interval was idle
    used: float  # slots of the pool, as in memory.Usage
    reserved: float
    internal: float
    external: float
    cached: float
    free: float
    running: float  # sequences in the batch
    waiting: float  # waiting requests
    most_running: int
    most_held: int  # slots in held blocks
    num_steps: int


class TimeSeries:
    """Points of equal width: a power of two of milliseconds, so that at most MOST_POINTS remain.

    A step counts in every interval that it is in, by the time it is there.
    """

    def __init__(self) -> None:
        self.width = 2.0**-10  # seconds
        self._sums: list[list[float]] = []  # by interval: seconds, then value × seconds
        self._peaks: list[list[int]] = []  # by interval: most running, most held, steps begun

    def add(self, start: float, end: float, usage: Usage, running: int, waiting: int) -> None:
        """A step from ``start`` to ``end``, with the pool and the queues as they were meanwhile."""
        while end >= self.width * MOST_POINTS:
            self._merge()
        width = self.width
        index, last = int(start / width), int(end / width)
        for _ in range(len(self._sums), last + 1):
            self._sums.append([0.0] * 9)
            self._peaks.append([0, 0, 0])
        self._peaks[index][2] += 1
        used, reserved, internal, external, cached, free = usage
        held = used + reserved + internal
        while True:
            stop = end if index == last else (index + 1) * width
            seconds = stop - start
            sums, peaks = self._sums[index], self._peaks[index]
            sums[0] += seconds
            sums[1] += used * seconds
            sums[2] += reserved * seconds
            sums[3] += internal * seconds
            sums[4] += external * seconds
            sums[5] += cached * seconds
            sums[6] += free * seconds
            sums[7] += running * seconds
            sums[8] += waiting * seconds
            if running > peaks[0]:
                peaks[0] = running
            if held > peaks[1]:
                peaks[1] = held
            if index == last:
                return
            index, start = index + 1, stop

    def points(self) -> tuple[Point, ...]:
        """The intervals in which something ran."""
        points = []
        for index, (sums, peaks) in enumerate(zip(self._sums, self._peaks, strict=True)):
            seconds = sums[0]
            if seconds > 0.0:
                means = [total / seconds for total in sums[1:]]
                points.append(Point(index * self.width, seconds, *means, *peaks))  # type: ignore[arg-type]
        return tuple(points)

    def _merge(self) -> None:
        """Make one interval of every two."""
        self.width *= 2
        sums, peaks = self._sums, self._peaks
        if len(sums) % 2:
            sums.append([0.0] * 9)
            peaks.append([0, 0, 0])
        self._sums = [list(map(add, *two)) for two in zip(sums[::2], sums[1::2], strict=True)]
        self._peaks = [
            [max(a[0], b[0]), max(a[1], b[1]), a[2] + b[2]]
            for a, b in zip(peaks[::2], peaks[1::2], strict=True)
        ]
