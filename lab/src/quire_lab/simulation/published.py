"""Runs that others have published, and how far the roofline is off: ``catalogue/published.json``.

Facts alone: the machine, the engine, lengths and load of a run, and what was measured. What engines
attain of machines (``Attained`` in ``engines.json``) is fitted to some of them and judged by the
others: by those of sources that were collected to judge by, or else by a third, which a hash of the
run's facts chooses. ``benchmarks/published_runs.py`` does both.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from quire.engine.work import Sight, Work
from quire.models.files import read_object
from quire.models.shape import ConfigFields, ModelShape, shape_of
from quire_lab.simulation.catalogue.engines import ENGINES, Attained, Division
from quire_lab.simulation.catalogue.machines import MACHINES, Machine
from quire_lab.simulation.catalogue.models import find_known
from quire_lab.simulation.roofline import Roofline

_FILE = Path(__file__).parent / "catalogue/published.json"
_ROUNDS = 60  # after which a load is steady, or before, as soon as steps stay as they are
_STEADY = 1e-6
_MOST_BUSY = 0.98  # share of all steps' time that prompts may take
_LEFT = 0.9  # of the memory beside weights, that holds keys and values
_WORKING = 2e9  # bytes of a step, on each machine
_BLOCK = 16


APART = (("mi300x", "mi325x", "mi355x"), ("strix-halo",), ("dgx-spark",))
"""Machines for which engines have kernels of their own, so that they attain other shares."""


class Steady(NamedTuple):
    """What a load that does not change gives. Seconds; output tokens per second."""

    first_token: float | None
    end: float | None
    rate: float


@dataclass(frozen=True)
class PublishedRun:
    """Equal requests, to so many machines.

    rate: requests per second; users: with one at a time each; neither: as many as memory holds.
    at_once: the users' requests come together, and no others. polled: steps after each of which the
    engine looks who has come.
    release: the year of an engine that is no longer the one that plans are for.
    cached: tokens of a prompt that others have had. kv: the type of keys and values, if it is not
    the engine's own. recorded: see ``Machine.recorded_tokens``, if the engine now has another.
    attention_groups, expert_parallel: how the machines share (``Division``).
    first_token, end: seconds, in the mean; tokens_per_second: that are written, by all machines.
    """

    source: str
    machine: str
    engine: str
    model: str
    machines: int
    prompt: int
    output: int
    form: str | None = None
    kv: str | None = None
    cached: int = 0
    step_tokens: int = 8192
    max_num_seqs: int = 2048
    rate: float | None = None
    users: int | None = None
    at_once: bool = False
    polled: int = 1
    recorded: int | None = None
    release: str = ""
    attention_groups: int = 1
    expert_parallel: bool = False
    first_token: float | None = None
    end: float | None = None
    tokens_per_second: float | None = None

    @property
    def judged_with(self) -> tuple[str, ...]:
        """The machines that it is fitted and judged with; none: all that are in no such group."""
        return next((machines for machines in APART if self.machine in machines), ())

    @property
    def _judged_by(self) -> tuple[str, str, tuple[str, ...]]:
        return self.engine, self.release, self.judged_with

    @property
    def is_held_out(self) -> bool:
        """As its source says. Where no source of what it is judged with does, one in three: which,
        depends on what was run alone.
        """
        if self._judged_by in _JUDGED:
            return self.source in _JUDGES
        facts = (self.source, self.machine, self.engine, self.model, self.form, self.machines,
                 self.step_tokens, self.rate, self.users, self.prompt, self.output)  # fmt: skip
        return int(sha256(repr(facts).encode()).hexdigest(), 16) % 3 == 0

    @cached_property
    def shape(self) -> ModelShape:
        """The model as the engine keeps it there."""
        engine, machine = ENGINES[self.engine], MACHINES[self.machine]
        known = find_known(self.model)
        model = known or shape_of(self.model, ConfigFields(_CONFIGS[self.model], self.model))
        if self.form is not None:
            model = engine.rounded(model, self.form, machine)
        if self.kv is not None:
            model = replace(model, kv_dtype=self.kv)
        return engine.kept(model, machine)

    def off(self, attained: Attained) -> Iterator[tuple[str, float]]:
        """What was measured, each with how many times as much is expected."""
        found = self.expected(attained)
        pairs = (
            ("first token", found.first_token, self.first_token),
            ("end", found.end, self.end),
            ("rate", found.rate, self.tokens_per_second),
        )
        for name, expected, measured in pairs:
            if expected is not None and measured is not None:
                yield name, expected / measured

    def expected(self, attained: Attained) -> Steady:
        """By the roofline, of a load that is steady: without simulating it."""
        machine = attained.on(MACHINES[self.machine], self.shape)
        if self.recorded is not None:
            machine = replace(machine, recorded_tokens=self.recorded)
        load = _RunSteps(self, machine)
        if self.rate is not None:
            return self._at_rate(load, self.rate, attained.first_token_seconds)
        if self.users is not None and self.at_once:
            return self._at_once(load, self.users, attained.first_token_seconds)
        if self.users is not None:
            return self._of_users(load, self.users, attained.first_token_seconds)
        seqs = max(1.0, min(self.max_num_seqs, self._most_seqs))
        pause = seqs * load.reading(seqs)
        return Steady(None, None, seqs * self.output / (self.output * load.decoding(seqs) + pause))

    @property
    def _most_seqs(self) -> float:
        memory = MACHINES[self.machine].memory * self.machines
        left = (memory - self.shape.weight_bytes) * _LEFT - _WORKING * self.machines
        kv = self.shape.kv_bytes_per_token * self.shape.kv_copies(self.machines)
        return left / (kv * (self.prompt + self.output))

    def _at_rate(self, load: _RunSteps, rate: float, beside: float) -> Steady:
        seqs, step = 1.0, 0.0
        for _ in range(_ROUNDS):
            busy, before = min(_MOST_BUSY, rate * load.reading(seqs)), step
            step = load.decoding(seqs) / (1 - busy)
            if abs(step - before) < _STEADY * step:
                break
            seqs = (seqs + min(self.max_num_seqs, rate * step * self.output)) / 2
        first = load.first(seqs) + step / 2 + beside
        return Steady(first, first + step * (self.output - 1), rate * self.output)

    def _at_once(self, load: _RunSteps, users: int, beside: float) -> Steady:
        first = load.together(users) + beside
        end = first + load.decoding(users) * (self.output - 1)
        return Steady(first, end, users * self.output / end)

    def _of_users(self, load: _RunSteps, users: int, beside: float) -> Steady:
        """They end, and come again, as steps that decode are over: who comes waits for no other's
        prompt, and those that come together are read in one step.
        """
        if users == 1:
            first, step = load.first_alone(), load.decoding(1)
        else:
            ends = users / self.output  # texts that end with a step
            share = -math.expm1(-ends)  # of steps after which somebody comes
            first = load.first_alone(ends / share)
            step = load.decoding(users) + share * first * (users - 1) / users
            first += self.polled * step / 2
        rate = users * self.output / (step * self.output + first)
        first += beside
        return Steady(first, first + step * (self.output - 1), rate)


class _RunSteps:
    """Seconds of a run's steps."""

    def __init__(self, run: PublishedRun, machine: Machine) -> None:
        self._run = run
        division = Division(run.attention_groups, run.expert_parallel)
        self._roofline = Roofline(run.shape, machine, run.machines, _BLOCK, division)
        self._new = run.prompt - run.cached
        self._chunks = math.ceil(self._new / run.step_tokens)
        windows = run.shape.cache().windows
        self._sights = tuple(Sight(n / len(windows), w) for w, n in Counter(windows).items())
        pairs = (sight.share * sight.pairs(run.cached, self._new) for sight in self._sights)
        self._pairs = sum(pairs) / self._chunks

    def decoding(self, seqs: float) -> float:
        return self._step(0, seqs)

    def first(self, seqs: float) -> float:
        """Of a prompt, beside others that decode."""
        return self._chunks * self._step(min(self._new, self._run.step_tokens), seqs)

    def reading(self, seqs: float) -> float:
        """By which a prompt keeps the others waiting."""
        return self.first(seqs) - self._chunks * self.decoding(seqs)

    def first_alone(self, together: float = 1.0) -> float:
        """Of prompts that come together, with nobody who decodes."""
        tokens = min(self._new, self._run.step_tokens)
        most = max(1.0, self._run.step_tokens / self._new)
        return self._chunks * self._step(tokens, 0, min(together, most))

    def together(self, prompts: int) -> float:
        """Of so many prompts, which are all of the step."""
        return self._step(self._new, 0, prompts)

    def _step(self, tokens: int, seqs: float, prompts: float = 1) -> float:
        run = self._run
        work = Work(
            prefill_tokens=prompts * tokens,  # type: ignore[arg-type]
            prefill_pairs=prompts * self._pairs if tokens else 0,
            prefill_context=prompts * self._seen(run.cached, tokens) if tokens else 0,
            decode_seqs=seqs,  # type: ignore[arg-type]  # in the mean
            decode_context=seqs * self._seen(run.prompt + run.output // 2 - 1, 1),
            samples=seqs + (prompts if tokens else 0),  # type: ignore[arg-type]
        )
        return self._roofline.seconds(work)

    def _seen(self, start: int, count: int) -> float:
        return sum(sight.share * sight.context(start, count) for sight in self._sights)


def errors(runs: Sequence[PublishedRun], attained: Attained) -> dict[str, list[float]]:
    """By what was measured: how far each run is off, as a share."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for name, times in run.off(attained):
            found.setdefault(name, []).append(abs(times - 1))
    return found


def _read() -> tuple[Mapping[str, Any], Mapping[str, Any], tuple[PublishedRun, ...]]:
    values = read_object(_FILE)
    runs = tuple(PublishedRun(**run) for run in values["runs"])
    return values["sources"], values["models"], runs


SOURCES, _CONFIGS, RUNS = _read()
_JUDGES = frozenset(name for name, source in SOURCES.items() if source.get("held_out"))
_JUDGED = frozenset(run._judged_by for run in RUNS if run.source in _JUDGES)
CURRENT = tuple(run for run in RUNS if not run.release)
"""Runs of engines for which plans are."""
