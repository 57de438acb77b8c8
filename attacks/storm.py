"""All attacks, on a server that lives as long as it recovers from each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attacks.attack import Attack
from attacks.observer import Observation, Observer
from attacks.shutdown import Shutdown, end, shut_down
from attacks.target import find_limits
from attacks.victim import Holdings, Victim, victim
from attacks.watch import watching

MEMORY_GROWTH = 1.1  # that a server may be left with
_OPEN = ("--trust-request-chat-template",)
_LONGEST_IDLING = 15.0  # seconds in which a server that nobody asks comes to rest


@dataclass(frozen=True)
class Life:
    """One server, from its start to its end.

    slots_held: of the KV pool, when nobody asked for anything any more.
    recovered: from all attacks; else it was ended amid the last.
    shutdown: how it went.
    """

    before: Holdings
    after: Holdings
    slots_held: int
    tracebacks: int
    recovered: bool
    shutdown: Shutdown


@dataclass(frozen=True)
class Storm:
    """How attacks are run.

    flags: of the server, beside those that open what is to be attacked.
    shutdown_timeout: of the server, in seconds.
    seconds: that each attack lasts.
    patience: seconds after each in which the server has to recover; if it does not, the next
        attack meets a new one.
    tell: called with what has been observed of each, and before of the first server beside nobody
        and beside honest clients.
    """

    flags: Sequence[str]
    shutdown_timeout: float
    seconds: float
    patience: float
    tell: Callable[[Observation], None]

    def run(self, attacks: Sequence[Attack]) -> list[Life]:
        """All of them, in order."""
        lives: list[Life] = []
        left = list(attacks)
        while left:
            timeout = ("--shutdown-timeout", f"{self.shutdown_timeout:g}")
            with victim([*_OPEN, *timeout, *self.flags]) as server:
                lives.append(self._live(server, left, first=not lives))
        return lives

    def _live(self, server: Victim, left: list[Attack], *, first: bool) -> Life:
        """Take attacks from ``left`` until none is, or one was too much."""
        limits = find_limits(server.address)
        with watching(server.address, limits) as watch:
            observer = Observer(server, limits, watch, self.patience)
            for observation in observer.calibrate(self.seconds):
                if first:
                    self.tell(observation)
            before, recovered = server.holdings(), True
            while left and recovered:
                observation = observer.observe(left.pop(0), self.seconds)
                self.tell(observation)
                recovered = observation.recovered
        if not recovered:
            after, shutdown = server.holdings(), end(server, self.shutdown_timeout)
            server.kill()
            return Life(before, after, 0, server.num_tracebacks, False, shutdown)
        slots_held = _slots_held_at_rest(server)
        after = server.settled(before.rss * MEMORY_GROWTH)
        shutdown = shut_down(server, limits, self.shutdown_timeout)
        return Life(before, after, slots_held, server.num_tracebacks, True, shutdown)


def _slots_held_at_rest(server: Victim) -> int:
    deadline = time.monotonic() + _LONGEST_IDLING
    while (held := server.slots_held()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return held
