"""How many requests may wait to be let in, and how long until there is room again."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from quire.core.errors import QueueFullError, RequestError
from quire.core.scheduling.request_queue import RequestQueue

_SHORTEST, _LONGEST = 1.0, 600.0
_FADING = 60.0  # seconds of waiting after which what was seen counts for a third
TOKEN_BYTES = 128  # of a prompt that waits: a Python number in JSON's list, in tuples, and hashed
_CHARACTERS = 5  # of a token, or fewer: of a text whose tokens are not known yet


@dataclass(frozen=True)
class QueueLimits:
    """What may wait to be let in; None: any number.

    max_requests: that wait.
    max_bytes: that their prompts take together; one of ``longest`` tokens has room all the same.
    """

    max_requests: int | None = None
    max_bytes: int | None = None
    longest: int = 0


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
        """Seconds until ``count`` have been let in, by what was seen."""
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


class WaitingRoom:
    """Requests that wait in ``queue`` and have never been let in.

    forecast: seconds until a number of them has been let in; None: it is taken to go on as fast
        as of late.

    An event loop keeps room for those that come; an engine's thread queues them. Each counts once,
    at any moment: as one that comes until it is queued, and from then on in the queue.
    """

    def __init__(
        self,
        queue: RequestQueue,
        limits: QueueLimits = QueueLimits(),  # frozen
        forecast: Callable[[int], float | None] = lambda count: None,
    ) -> None:
        self.limits, self.limit = limits, limits.max_requests
        most = limits.max_bytes
        self.max_tokens = None if most is None else max(most // TOKEN_BYTES, limits.longest)
        self.num_refused = 0
        self._queue, self._forecast = queue, forecast
        self._coming = 0  # that are made ready to be queued
        self._tokens_coming = 0
        self._moving = threading.Lock()  # held while one goes from there to the queue
        self._estimate = WaitEstimate(queue)
        self.observe = self._estimate.observe  # to be called after every step has been planned

    def lift_limits(self) -> None:
        """Let any number wait."""
        self.limit = self.max_tokens = None

    @contextmanager
    def reserve(self, count: int, prompts: Iterable[object] = ()) -> Iterator[Places]:
        """Keep room for requests until they are queued, or it is known that they will not be.

        prompts: theirs, as far as they are known: texts, or tokens.

        RequestError: there can never be so much; QueueFullError: there is not now.
        """
        with self._moving:
            if self.limit is not None:
                self._refuse_excess(count, self.limit)
            places = Places(self, count)
            try:
                self._weigh(places, sum(map(_least_tokens, prompts)))
            except BaseException:
                places._add(-count)
                raise
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
                f"{waiting} requests wait, and max_num_waiting is {limit}: no room for {count}",
                self.seconds_until(waiting + count - limit),
            )

    def _weigh(self, places: Places, tokens: int) -> None:
        """Count ``tokens`` for those of ``places`` that are not queued yet."""
        others = self._queue.num_new_tokens + self._tokens_coming - places._tokens
        most = self.max_tokens
        if most is not None and tokens > most:
            raise RequestError(
                f"the prompts of a request may hold at most {most:,} tokens together, as all "
                f"that wait may; got {tokens:,}",
                "prompt",
            )
        if most is not None and tokens + others > most:
            self.num_refused += places._left
            excess = self._queue.num_new * min(1.0, (tokens + others - most) / max(others, 1))
            raise QueueFullError(
                f"the waiting prompts hold {others:,} tokens, and there is memory for {most:,}: no "
                f"room for {tokens:,} more now",
                self.seconds_until(math.ceil(excess)),
            )
        self._tokens_coming += tokens - places._tokens
        places._tokens = tokens

    @property
    def predicted_wait(self) -> float:
        """Seconds until all that wait now are admitted."""
        return self.wait_of(self._queue.num_new)

    def wait_of(self, count: int) -> float:
        """Seconds until ``count`` are admitted."""
        forecast = self._forecast(count)
        return self._estimate.of(count) if forecast is None else forecast

    def seconds_until(self, count: int) -> float:
        """The time in which ``count`` leave the queue; 1 to 600 s."""
        return min(max(self.wait_of(count), _SHORTEST), _LONGEST)


class Places:
    """Room that is kept for a number of requests which come."""

    def __init__(self, room: WaitingRoom, count: int) -> None:
        self._room = room
        self._left = self._tokens = 0
        self._add(count)

    def weigh(self, tokens: int, *, at_least: bool = False) -> None:
        """Their prompts have turned out to hold ``tokens``. Raises as ``reserve`` does."""
        with self._room._moving:
            self._room._weigh(self, max(tokens, self._tokens) if at_least else tokens)

    @contextmanager
    def take(self, tokens: int = 0) -> Iterator[None]:
        """Within it one of them, of ``tokens``, is queued. If that fails, its place is kept."""
        with self._room._moving:
            yield
            self._add(-min(self._left, 1))
            self._forget(min(self._tokens, tokens))

    def give_up(self) -> None:
        """Give back the places of those that have not been queued."""
        with self._room._moving:
            self._add(-self._left)
            self._forget(self._tokens)

    def _add(self, count: int) -> None:
        self._left += count
        self._room._coming += count

    def _forget(self, tokens: int) -> None:
        self._tokens -= tokens
        self._room._tokens_coming -= tokens


def _least_tokens(prompt: object) -> int:
    """The least tokens of a prompt that was not tokenized."""
    given = prompt
    if isinstance(prompt, Mapping):
        given = prompt.get("prompt_token_ids") or prompt.get("prompt")
    if isinstance(given, str):
        return len(given) // _CHARACTERS
    return len(given) if isinstance(given, Sequence) else 0
