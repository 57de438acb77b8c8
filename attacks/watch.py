"""What the innocents see, as it comes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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


class Sight:
    """What one innocent has seen, up to this moment: a wait that goes on counts so far."""

    def __init__(self, pipe: Connection, last: Seen) -> None:
        self._pipe = pipe
        self._seen: list[Seen] = []
        self._last = last

    def begin(self) -> None:
        self.take_in()
        self._seen.clear()

    def take_in(self) -> None:
        """Read what has come; to be called often, for the pipe holds little."""
        while self._pipe.poll():
            self._last = self._pipe.recv()
            self._seen.append(self._last)

    def has_seen(self, kind: type[Seen], since: float) -> bool:
        return any(isinstance(one, kind) and one.at >= since for one in self._seen)

    def _all(self, kind: type[_T]) -> list[_T]:
        return [one for one in self._seen if isinstance(one, kind)]

    def worst_health(self) -> float:
        """The longest that somebody who asked for health had to wait."""
        return max(self._longest(Healthy), self._silence())

    def longest_gap(self) -> float:
        """The longest time between two chunks of a stream."""
        return max(self._longest(Chunks), 0.0 if self._is_waiting else self._silence())

    def slowest_start(self) -> float:
        """The longest time that a stream's first chunk took."""
        return max(self._longest(FirstChunk), self._silence() if self._is_waiting else 0.0)

    def gaps(self) -> list[float]:
        """The longest within each moment."""
        return [one.seconds for one in self._all(Chunks)]

    @property
    def num_begun(self) -> int:
        """Streams that have."""
        return len(self._all(FirstChunk))

    @property
    def num_chunks(self) -> int:
        return sum(one.number for one in self._all(Chunks))

    def texts(self) -> list[str | None]:
        """Of the streams that have ended; None where one broke off."""
        return [one.text for one in self._all(Ended)]

    @property
    def _is_waiting(self) -> bool:
        """Whether no stream has begun since the last one ended."""
        return isinstance(self._last, Ended)

    def _longest(self, kind: type[Healthy] | type[Chunks] | type[FirstChunk]) -> float:
        return max((one.seconds for one in self._seen if isinstance(one, kind)), default=0.0)

    def _silence(self) -> float:
        silence = time.time() - self._last.at
        return silence if silence > _SILENT else 0.0


class Watch:
    """What all have seen since ``begin``.

    guided: the stream that is written by a grammar.
    """

    def __init__(self, health: Connection, plain: Connection, guided: Connection) -> None:
        now = time.time()
        self.health = Sight(health, Healthy(now, 0.0))
        self.plain = Sight(plain, Ended(now, None))
        self.guided = Sight(guided, Ended(now, None))

    @property
    def streams(self) -> tuple[Sight, Sight]:
        return self.plain, self.guided

    def begin(self) -> None:
        for sight in (self.health, *self.streams):
            sight.begin()

    def take_in(self) -> None:
        for sight in (self.health, *self.streams):
            sight.take_in()

    def all_well(self, since: float) -> bool:
        """Whether health and all streams have come since then."""
        return self.health.has_seen(Healthy, since) and all(
            stream.has_seen(Chunks, since) for stream in self.streams
        )

    def usual_gap(self) -> float:
        """What nine in ten of the longest gaps within a moment do not exceed."""
        gaps = sorted(gap for stream in self.streams for gap in stream.gaps())
        return gaps[len(gaps) * 9 // 10] if gaps else 0.0

    @property
    def num_begun(self) -> int:
        return sum(stream.num_begun for stream in self.streams)

    @property
    def num_chunks(self) -> int:
        return sum(stream.num_chunks for stream in self.streams)


@contextmanager
def watching(address: Address, limits: Limits) -> Iterator[Watch]:
    """Processes that ask for health and read streams, ended at the end."""
    context = multiprocessing.get_context("spawn")  # a fork would take the caller's threads along
    requests = [stream_request(limits), stream_request(limits, guided=True)]
    works: list[tuple[Callable[..., None], tuple[object, ...]]]
    works = [(watch_health, (address,)), *((read_streams, (address, one)) for one in requests)]
    pipes = []
    with ExitStack() as stack:
        for work, arguments in works:
            told, tell = context.Pipe(duplex=False)
            innocent = context.Process(target=work, args=(*arguments, tell), daemon=True)
            innocent.start()
            stack.callback(innocent.join)
            stack.callback(innocent.kill)
            pipes.append(told)
        yield Watch(*pipes)
