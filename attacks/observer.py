"""What the innocents see while one attack goes on, and until all is as before."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from attacks.attack import Attack
from attacks.attacker import attacking
from attacks.honest import HONEST, QUIET
from attacks.target import Limits
from attacks.victim import Victim
from attacks.watch import Watch
from quire.tools.doctor.machine import OthersShare

_POLL = 0.05
_LONGEST_HONEST = 60.0  # seconds in which all honest clients are served
_OVERTIME = 15.0  # seconds after its time in which an attack ends


@dataclass(frozen=True)
class Observation:
    """What an attack did to others. Times in seconds.

    gap, guided: the longest of the free stream, and of the one that is written by a grammar.
    steps: a gap of a stream that the engine's steps explain: one beside honest clients where
        the attack's requests were let in and so shared the steps, else one beside nobody. Nine in
        ten are no longer, which no accident in between makes larger. None of these two
        themselves, which no goal is for.
    first_chunk: the longest that a stream took to begin.
    wrong_texts: streams, out of ``texts``, that broke off or had another text than beside nobody.
    taken: seconds of a processor that the server and all its processes had, without those that the
        streams' chunks cost beside nobody; None where that is not known.
    others: the share of the machine's cores that went to processes of somebody else.
    recovered: whether, when it was over, all was as before within the patience.
    """

    name: str
    answers: Mapping[str, int]
    unexpected: Sequence[str]
    health: float
    gap: float
    guided: float
    steps: float | None
    first_chunk: float
    peak_rss: int
    taken: float | None
    others: float
    texts: int
    wrong_texts: int
    recovered: bool

    @property
    def pause(self) -> float | None:
        """Of a stream, beyond what its steps take."""
        longest = max(self.gap, self.guided)
        return None if self.steps is None else max(0.0, longest - self.steps)


class Observer:
    """Watches one server under one attack after the other.

    patience: seconds in which a server has to recover from one.
    """

    def __init__(self, server: Victim, limits: Limits, watch: Watch, patience: float) -> None:
        self._server = server
        self._limits = limits
        self._watch = watch
        self._patience = patience
        self._texts: list[str] = []  # of the innocent streams, beside nobody
        self._of_a_chunk: float | None = None  # seconds of a processor
        self._idle_gap: float | None = None
        self._full_gap: float | None = None

    def calibrate(self, seconds: float) -> list[Observation]:
        """Learn how the streams are without attacks: their texts, gaps and costs."""
        while len(self._texts) < len(self._watch.streams):
            time.sleep(_POLL)
            self._watch.take_in()
            ended = ([text for text in one.texts() if text] for one in self._watch.streams)
            self._texts = [texts[0] for texts in ended if texts]
        before = self._server.processor_seconds()
        idle = self.observe(QUIET, seconds)
        idle_gap = self._watch.usual_gap()
        spent = self._server.processor_seconds() - before
        self._of_a_chunk = spent / max(1, self._watch.num_chunks)
        full = self.observe(HONEST, _LONGEST_HONEST)
        self._idle_gap, self._full_gap = idle_gap, self._watch.usual_gap()
        return [idle, full]

    def observe(self, attack: Attack, seconds: float) -> Observation:
        """Let it run for so many seconds, and wait until the server is as before."""
        watch, address = self._watch, self._server.address
        self._server.forget_peak()
        watch.begin()
        others, admitted = OthersShare(), self._num_admitted()
        spent = self._server.processor_seconds()
        with attacking(attack.name, address, self._limits, seconds) as attacker:
            deadline = time.monotonic() + seconds + _OVERTIME
            while attacker.busy and time.monotonic() < deadline:
                watch.take_in()
                time.sleep(_POLL)
            answers = attacker.answers()
        recovered = self._recovers()
        taken = None
        if self._of_a_chunk is not None and self._server.alive:
            innocent = self._of_a_chunk * watch.num_chunks
            taken = max(0.0, self._server.processor_seconds() - spent - innocent)
        texts = [
            text == right
            for stream, right in zip(watch.streams, self._texts, strict=True)
            for text in stream.texts()
        ]
        return Observation(
            name=attack.name,
            answers=dict(answers),
            unexpected=attack.unexpected(list(answers)),
            health=watch.health.worst_health(),
            gap=watch.plain.longest_gap(),
            guided=watch.guided.longest_gap(),
            steps=self._full_gap if self._shared(admitted) else self._idle_gap,
            first_chunk=max(stream.slowest_start() for stream in watch.streams),
            peak_rss=self._server.peak_rss(),
            taken=taken,
            others=others.so_far(),
            texts=len(texts),
            wrong_texts=texts.count(False),
            recovered=recovered,
        )

    def _shared(self, admitted: int) -> bool:
        """Whether more than the innocents' streams have been let in since ``admitted`` had."""
        return self._num_admitted() - admitted > self._watch.num_begun + len(self._watch.streams)

    def _num_admitted(self) -> int:
        with suppress(OSError):
            return self._server.num_admitted()
        return 0  # it does not answer: then nothing is excused

    def _recovers(self) -> bool:
        """Whether health and streams come back, and no request is left but the streams."""
        ended = time.time()
        while time.time() < ended + self._patience and self._server.alive:
            self._watch.take_in()
            if self._watch.all_well(ended):
                with suppress(OSError):
                    if self._server.num_requests() <= len(self._watch.streams):
                        return True
            time.sleep(_POLL)
        self._watch.take_in()
        return False
