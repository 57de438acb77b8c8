"""What the innocents see while one attack goes on, and until all is as before."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from attacks.attack import Attack
from attacks.attacker import attacking
from attacks.honest import HONEST, QUIET
from attacks.innocent import Chunks, Healthy
from attacks.target import Limits
from attacks.victim import Victim
from attacks.watch import Watch
from quire.tools.bench.machine import OthersShare

_POLL = 0.05
_LONGEST_HONEST = 60.0  # seconds in which all honest clients are served
_OVERTIME = 15.0  # seconds after its time in which an attack ends


@dataclass(frozen=True)
class Observation:
    """What an attack did to others. Times in seconds.

    steps: a gap of the stream that the engine's steps explain: one beside honest clients where
        the attack's requests were let in and so shared the steps, else one beside nobody. Nine in
        ten are no longer, which no accident in between makes larger. None of these two
        themselves, which no goal is for.
    first_chunk: the longest that a stream took to begin.
    wrong_texts: streams, out of ``texts``, that broke off or had another text than beside nobody.
    others: the share of the machine's cores that went to processes of somebody else.
    recovered: whether, when it was over, all was as before within the patience.
    """

    name: str
    answers: Mapping[str, int]
    unexpected: Sequence[str]
    health: float
    gap: float
    steps: float | None
    first_chunk: float
    peak_rss: int
    others: float
    texts: int
    wrong_texts: int
    recovered: bool

    @property
    def pause(self) -> float | None:
        """Of the stream, beyond what its steps take."""
        return None if self.steps is None else max(0.0, self.gap - self.steps)


class Observer:
    """Watches one server under one attack after the other.

    patience: seconds in which a server has to recover from one.
    """

    def __init__(self, server: Victim, limits: Limits, watch: Watch, patience: float) -> None:
        self._server = server
        self._limits = limits
        self._watch = watch
        self._patience = patience
        self._text: str | None = None  # of the innocent stream, beside nobody
        self._idle_gap: float | None = None
        self._full_gap: float | None = None

    def calibrate(self, seconds: float) -> list[Observation]:
        """Learn how the stream is without attacks: its text, and its gaps."""
        while self._text is None:
            time.sleep(_POLL)
            self._watch.take_in()
            self._text = next((text for text in self._watch.texts() if text is not None), None)
        idle = self.observe(QUIET, seconds)
        idle_gap = self._watch.usual_gap()
        full = self.observe(HONEST, _LONGEST_HONEST)
        self._idle_gap, self._full_gap = idle_gap, self._watch.usual_gap()
        return [idle, full]

    def observe(self, attack: Attack, seconds: float) -> Observation:
        """Let it run for so many seconds, and wait until the server is as before."""
        watch, address = self._watch, self._server.address
        self._server.forget_peak()
        watch.begin()
        others, admitted = OthersShare(), self._num_admitted()
        with attacking(attack.name, address, self._limits, seconds) as attacker:
            deadline = time.monotonic() + seconds + _OVERTIME
            while attacker.busy and time.monotonic() < deadline:
                watch.take_in()
                time.sleep(_POLL)
            answers = attacker.answers()
        recovered = self._recovers()
        texts = watch.texts()
        return Observation(
            name=attack.name,
            answers=dict(answers),
            unexpected=attack.unexpected(list(answers)),
            health=watch.worst_health(),
            gap=watch.longest_gap(),
            steps=self._full_gap if self._shared(admitted) else self._idle_gap,
            first_chunk=watch.slowest_start(),
            peak_rss=self._server.peak_rss(),
            others=others.so_far(),
            texts=len(texts),
            wrong_texts=sum(text != self._text for text in texts),
            recovered=recovered,
        )

    def _shared(self, admitted: int) -> bool:
        """Whether more than the innocent's streams have been let in since ``admitted`` had."""
        return self._num_admitted() - admitted > self._watch.num_begun + 1

    def _num_admitted(self) -> int:
        with suppress(OSError):
            return self._server.num_admitted()
        return 0  # it does not answer: then nothing is excused

    def _recovers(self) -> bool:
        """Whether health and stream come back, and no request is left but the stream."""
        ended = time.time()
        while time.time() < ended + self._patience and self._server.alive:
            self._watch.take_in()
            if self._watch.has_seen(Healthy, ended) and self._watch.has_seen(Chunks, ended):
                with suppress(OSError):
                    if self._server.num_requests() <= 1:
                        return True
            time.sleep(_POLL)
        self._watch.take_in()
        return False
