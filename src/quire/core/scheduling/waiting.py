"""How long until who waits has been let in."""

from __future__ import annotations

import math

from quire.core.scheduling.request_queue import RequestQueue

_FADING = 60.0  # seconds of waiting after which what was seen counts for a third


class WaitEstimate:
    """Learns at which pace newcomers leave ``queue``.

    With ``seconds`` in which any waited, and ``left``, how many left the queue in them, both fading
    as they grow old, ``n`` leave in n · (seconds + 1) / (left + 1). Seconds in which nobody waits
    say nothing. As long as nothing was seen, that is one a second.
    """

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue
        self._seconds = self._left = 0.0
        self._seen = (0.0, 0, 0)  # the time, how many waited, how many had left

    def of(self, count: int) -> float:
        """Seconds until so many have been let in, by what was seen."""
        return count * (self._seconds + 1) / (self._left + 1)

    def observe(self, now: float) -> None:
        """Look at the queue. To be called after every step has been planned."""
        (then, waiting, left), queue = self._seen, self._queue
        if waiting:
            elapsed = max(0.0, now - then)  # the clock may have been set back
            fading = math.exp(-elapsed / _FADING)
            self._seconds = self._seconds * fading + elapsed
            self._left = self._left * fading + queue.num_left - left
        self._seen = now, queue.num_new, queue.num_left
