"""Tries every change of a plan's settings, and ranks them by the plan's goals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from quire.core.errors import ConfigError
from quire.core.limits import EngineLimits
from quire.engine.traces.request import TraceRequest
from quire.engine.work import Work
from quire_lab.simulation.fleet import FleetResult, FleetSetup, FleetSimulator, ReplicaKind
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.planning.changes import Change, Changed, Price, changes
from quire_lab.simulation.planning.deployment import Deployment
from quire_lab.simulation.planning.nameless import (
    OnStep,
    nameless_deployment,
    nobody_gives_way,
    sooner,
)
from quire_lab.simulation.planning.plan import Goodput, Saturation, most_missed_of, strain_of
from quire_lab.simulation.planning.replicas import halves, numbers, pairs, replicated
from quire_lab.simulation.planning.search import CLOSE, foreseen, highest_rate
from quire_lab.simulation.recorder import KeptResults
from quire_lab.simulation.result import SimulationResult
from quire_lab.simulation.sample import WorkloadSample
from quire_lab.simulation.simulator import Simulator

Result = SimulationResult | FleetResult

_CLOSE = 0.05
"""Share to which the rate with a change is found."""


@dataclass(frozen=True)
class ChangeRanking:
    """Finds the effect of each change alone.

    goodput: without any; if bursts miss the goals at every rate, that of even arrivals counts.
    simulator: of a deployment with these limits, which stops once this many have missed the goals.
    asked_rate: requests per second to be served. prices: as for ``changes``.
    """

    deployment: Deployment
    sample: WorkloadSample
    goals: Goals
    saturation: Saturation
    goodput: Goodput
    simulator: Callable[[EngineLimits, Deployment, int | None, OnStep | None], Simulator]
    progress: Callable[[str], None]
    asked_rate: float | None
    prices: Mapping[str, float]

    def changed(self) -> tuple[Changed, ...]:
        """The best first. Where what comes can be served, settings alone: nothing is bought."""
        beyond = self.goodput.beyond or self.saturation.result
        coming = changes(self.deployment, beyond, self.sample.shares_prefixes, self.prices)
        if self.is_served:
            coming = (one for one in coming if one.price is Price.NOTHING)
        found: list[Changed] = []
        for change in coming:
            turned: Change | None = change
            while turned is not None:
                found.append(self._turned(turned, guess=self._guess(turned, found)))
                turned = turned.further if found[-1].gain > 1 else None
        found += [] if self.is_served else self.replicas()
        return tuple(sorted(found, key=lambda one: -one.gain))

    @property
    def is_served(self) -> bool:
        """Whether what was asked about can be served as it is."""
        return self.asked_rate is not None and self.asked_rate <= self.base

    def is_enough(self, change: Change, rate: float) -> bool:
        """Whether requests at a rate meet the goals; without goals, whether as many are served."""
        try:
            if self.goals == Goals():
                return self._served(change) >= rate
            return self._strain(change)(rate) <= 1
        except ConfigError:
            return False

    # -- replicas ------------------------------------------------------------------------------

    def replicas(self) -> Iterator[Changed]:
        """More machines: two by each routing, and by the best of these as many as are needed."""
        base = self.deployment
        in_halves = halves(base)
        if in_halves is not None:
            yield self._turned(in_halves, guess=self._guess(in_halves, ()))
        best: Changed | None = None
        for change in pairs(base):
            found = self._turned(change) if best is None else self._rerouted(change, best)
            yield found
            if found.like is None and found.gain > (1 if best is None else best.gain):
                best = found
        if best is None:
            return
        each, routing = best.rate / 2, best.change.routing
        assert routing is not None, "they are behind one"
        for count in numbers(each, self.asked_rate):
            yield self._turned(replicated(base, count, routing), start=count * each)

    def _rerouted(self, change: Change, best: Changed) -> Changed:
        """The same replicas by another routing: as good, or how much better or worse."""
        if self.goals == Goals():
            found = self._turned(change)
            near = abs(found.rate - best.rate) <= CLOSE * best.rate
            return found._replace(like=best.change.routing if near else None)
        self.progress(change.name)
        strain = self._strain(change)
        if strain((1 + _CLOSE) * best.rate) <= 1:
            return self._turned(change, start=(1 + 2 * _CLOSE) * best.rate)
        if strain((1 - _CLOSE) * best.rate) <= 1:
            return Changed(change, best.rate, best.gain, like=best.change.routing)
        return self._turned(change, start=(1 - 2 * _CLOSE) * best.rate)

    # -- one change ----------------------------------------------------------------------------

    @property
    def base(self) -> float:
        """Requests per second without any change."""
        even = self.goodput.poisson
        return self.goodput.rate if even is None else even

    def _guess(self, change: Change, found: Sequence[Changed]) -> float:
        """About how high a rate meets the goals: as with what is like it, or by what steps cost."""
        faster = self.faster(change.deployment)
        for one in reversed(found):
            alike = one.change.knob == change.knob and one.gain > 0
            if alike and abs(self.faster(one.change.deployment) - faster) <= CLOSE * faster:
                return one.rate
        return change.replicas * self.base * faster

    def faster(self, other: Deployment) -> float:
        """How many times as fast as without it a step is that computes as much as it may."""
        prompt, output = self.sample.mean_tokens
        tokens = self.deployment.config.max_num_batched_tokens
        rows = round(tokens * output / (prompt + output))
        work = Work(
            prefill_tokens=tokens - rows,
            prefill_pairs=(tokens - rows) * prompt / 2,
            prefill_context=tokens - rows,
            decode_seqs=rows,
            decode_context=rows * (prompt + output / 2),
            samples=rows,
        )
        without, turned = (
            each.cost_model(each.config.block_size).seconds(work)
            for each in (self.deployment, other)
        )
        return without / turned

    def _turned(
        self, change: Change, *, start: float | None = None, guess: float | None = None
    ) -> Changed:
        """start: of several replicas, a rate to look at first; guess: what may come out."""
        base = self.base
        if change.same is not None:
            return Changed(change, base, 1.0)
        self.progress(change.name)
        try:
            if self.goals == Goals():
                rate = self._served(change)
            else:
                start = start or change.replicas * base
                rate = self._met(change, start, guess or start)
        except ConfigError as error:
            return Changed(change, 0.0, 0.0, refused=str(error))
        return Changed(change, rate, rate / base if base else 1.0)

    def _served(self, change: Change) -> float:
        """Requests per second of a line that never empties."""
        sample = self.sample.lengthened(change.replicas)
        result = self._run(change, sample.at_once)
        if not result.num_finished:
            raise ConfigError(result.first_refusal or "no request can be served")
        return result.request_rate

    def _met(self, change: Change, start: float, guess: float) -> float:
        """The highest rate that meets the goals."""
        base, high = self.base, self.goodput.beyond_rate
        strain = self._strain(change)
        if not base:
            guess = 0.7 * self.saturation.request_rate
            limits = (guess / 70, 30 * guess)
            return highest_rate(lambda rate: strain(rate) <= 1, [guess], *limits, _CLOSE)[0]
        high = high if math.isfinite(high) else base * (1 + _CLOSE)

        def search(meets: Callable[[float], bool]) -> tuple[float, float]:
            if change.replicas > 1:
                return highest_rate(meets, [start], base, 30 * start, _CLOSE)
            if meets(high):
                return highest_rate(meets, [], 0.0, 30 * base, _CLOSE, low=high)
            return (base, high) if meets(base) else (0.0, base)

        return foreseen(search, strain, guess)[0]

    def _strain(self, change: Change) -> Callable[[float], float]:
        """``strain_of`` a rate, for as long with several replicas as with one."""
        sample = self.sample.lengthened(change.replicas)
        if self.goodput.poisson is not None:
            sample = replace(sample, has_times=False)
        spare = most_missed_of(len(sample.requests))

        def strain(rate: float) -> float:
            result = self._run(change, partial(sample.at_rate, rate), spare)
            return strain_of(result, self.goals)

        return strain

    def _run(
        self,
        change: Change,
        come: Callable[[], Iterable[TraceRequest]],
        most_missed: int | None = None,
    ) -> Result:
        """Without names of blocks, if these do not matter."""

        def run(deployment: Deployment, on_step: OnStep | None = None) -> Result:
            if change.routing is None:
                one = self.simulator(deployment.limits(), deployment, most_missed, on_step)
                return one.run(come())
            fleet = FleetSetup((ReplicaKind(deployment),) * change.replicas, change.routing)
            told = None if on_step is None else lambda _, now, step: on_step(now, step)
            seed = deployment.config.seed
            kept = KeptResults(self.goals, most_missed=most_missed)
            return FleetSimulator(fleet, kept, seed=seed, on_step=told).run(come())

        plain = nameless_deployment(change.deployment, self.sample)
        without = None if plain is None else partial(run, plain, nobody_gives_way)
        return sooner(without, partial(run, change.deployment))
