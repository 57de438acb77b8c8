"""What the two innocents see, as it comes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import TypeVar

from attacks.innocent import (
    Chunks,
    Ended,
    FirstChunk,
    Healthy,
    read_streams,
    stream_request,
    watch_health,
)
from attacks.target import Address, Limits

Seen = Healthy | Chunks | FirstChunk | Ended
_T = TypeVar("_T", Healthy, Chunks, FirstChunk, Ended)
_SILENT = 0.1  # seconds without a word that are none of the innocents' own making


class Watch:
    """What has been seen since ``begin``, up to this moment: a wait that goes on counts so far."""

    def __init__(self, health: Connection, stream: Connection) -> None:
        self._pipes = (health, stream)
        self._seen: list[Seen] = []
        now = time.time()
        self._last: list[Seen] = [Healthy(now, 0.0), Ended(now, None)]  # of each pipe

    def begin(self) -> None:
        self.take_in()
        self._seen.clear()

    def take_in(self) -> None:
        """Read what has come; to be called often, for the pipes hold little."""
        for number, pipe in enumerate(self._pipes):
            while pipe.poll():
                self._last[number] = one = pipe.recv()
                self._seen.append(one)

    def has_seen(self, kind: type[Seen], since: float) -> bool:
        return any(isinstance(one, kind) and one.at >= since for one in self._seen)

    def _all(self, kind: type[_T]) -> list[_T]:
        return [one for one in self._seen if isinstance(one, kind)]

    def worst_health(self) -> float:
        """The longest that somebody who asked for health had to wait."""
        answered = max((one.seconds for one in self._all(Healthy)), default=0.0)
        return max(answered, _silence(self._last[0]))

    def longest_gap(self) -> float:
        """The longest time between two chunks of a stream."""
        waiting = isinstance(self._last[1], Ended)
        known = max((one.seconds for one in self._all(Chunks)), default=0.0)
        return known if waiting else max(known, _silence(self._last[1]))

    def usual_gap(self) -> float:
        """What nine in ten of the longest gaps within a moment do not exceed."""
        gaps = sorted(one.seconds for one in self._all(Chunks))
        return gaps[len(gaps) * 9 // 10] if gaps else 0.0

    def slowest_start(self) -> float:
        """The longest time that a stream's first chunk took."""
        waiting = isinstance(self._last[1], Ended)
        known = max((one.seconds for one in self._all(FirstChunk)), default=0.0)
        return max(known, _silence(self._last[1])) if waiting else known

    @property
    def num_begun(self) -> int:
        """Streams that have."""
        return len(self._all(FirstChunk))

    def texts(self) -> list[str | None]:
        """Of the streams that have ended; None where one broke off."""
        return [one.text for one in self._all(Ended)]


def _silence(last: Seen) -> float:
    silence = time.time() - last.at
    return silence if silence > _SILENT else 0.0


@contextmanager
def watching(address: Address, limits: Limits) -> Iterator[Watch]:
    """Two processes that ask for health and read streams, ended at the end."""
    context = multiprocessing.get_context("spawn")  # a fork would take the caller's threads along
    health, tell_health = context.Pipe(duplex=False)
    stream, tell_stream = context.Pipe(duplex=False)
    innocents = [
        context.Process(target=watch_health, args=(address, tell_health), daemon=True),
        context.Process(
            target=read_streams, args=(address, stream_request(limits), tell_stream), daemon=True
        ),
    ]
    for innocent in innocents:
        innocent.start()
    try:
        yield Watch(health, stream)
    finally:
        for innocent in innocents:
            innocent.kill()
            innocent.join()
