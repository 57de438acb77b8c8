"""How many requests may wait to be let in, and how long until there is room again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from quire.errors import QueueFullError, RequestError
from quire.scheduling import WaitEstimate
from quire.scheduling.request_queue import RequestQueue

_SHORTEST, _LONGEST = 1.0, 600.0


class WaitingRoom:
    """Requests that wait in ``queue`` and have never been let in: ``limit`` of them, None: any.

    An event loop keeps room for those that come; an engine's thread queues them. Each counts once,
    at any moment: as one that comes until it is queued, and from then on in the queue.
    """

    def __init__(self, queue: RequestQueue, limit: int | None) -> None:
        self.limit = limit
        self.num_refused = 0
        self._queue = queue
        self._coming = 0  # that are made ready to be queued
        self._moving = threading.Lock()  # held while one goes from there to the queue
        self._estimate = WaitEstimate(queue)

    @contextmanager
    def reserve(self, count: int) -> Iterator[Places]:
        """Keep room for requests until they are queued, or it is known that they will not be.

        RequestError: there can never be so much; QueueFullError: there is not now.
        """
        with self._moving:
            if self.limit is not None:
                self._refuse_excess(count, self.limit)
            places = Places(self, count)
        try:
            yield places
        finally:
            places.give_up()

    def _refuse_excess(self, count: int, limit: int) -> None:
        if count > limit:
            raise RequestError(
                f"a request may hold at most max_num_waiting, {limit}, prompts; got {count}",
                "prompt",
            )
        waiting = self._queue.num_new + self._coming
        if waiting + count > limit:
            self.num_refused += count
            raise QueueFullError(
                f"{waiting} requests wait, of at most max_num_waiting, {limit}: "
                f"no room for {count} more now",
                self.seconds_until(waiting + count - limit),
            )

    @property
    def predicted_wait(self) -> float:
        """Seconds until all that wait now have been let in, by what was seen."""
        return self.wait_of(self._queue.num_new)

    def wait_of(self, count: int) -> float:
        """Seconds until so many have been let in, by what was seen."""
        return self._estimate.of(count)

    def observe(self, now: float) -> None:
        """Look at the queue. To be called after every step has been planned."""
        self._estimate.observe(now)

    def seconds_until(self, count: int) -> float:
        """The time in which so many leave the queue, by what was seen; 1 to 600 s."""
        return min(max(self.wait_of(count), _SHORTEST), _LONGEST)


class Places:
    """Room that is kept for so many requests which come."""

    def __init__(self, room: WaitingRoom, count: int) -> None:
        self._room = room
        self._left = 0
        self._add(count)

    @contextmanager
    def take(self) -> Iterator[None]:
        """Within it one of them is queued. If that fails, its place is still kept."""
        with self._room._moving:
            yield
            self._add(-min(self._left, 1))

    def give_up(self) -> None:
        """Whoever of them has not been queued needs no place."""
        with self._room._moving:
            self._add(-self._left)

    def _add(self, count: int) -> None:
        self._left += count
        self._room._coming += count
