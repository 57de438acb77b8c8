"""Every change of a plan's setting, weighed by what the plan was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from quire.capacity import EngineLimits
from quire.errors import ConfigError
from quire.metrics import Goals
from quire.simulation.planning.changes import Change, Changed, changes
from quire.simulation.planning.deployment import Deployment
from quire.simulation.planning.plan import GOAL_SHARE, Goodput, Saturation, most_missed_of
from quire.simulation.planning.search import highest_rate
from quire.simulation.sample import WorkloadSample
from quire.simulation.simulator import Simulator

_CLOSE = 0.05
"""Share to which the rate with a change is found."""


@dataclass(frozen=True)
class Ranking:
    """Finds what each change alone would do.

    goodput: without any; where bursts miss the goals at every rate, that of even arrivals counts.
    simulator: of a deployment with these limits, which gives up once so many have missed the goals.
    """

    deployment: Deployment
    sample: WorkloadSample
    goals: Goals
    saturation: Saturation
    goodput: Goodput
    simulator: Callable[[EngineLimits, Deployment, int | None], Simulator]
    progress: Callable[[str], None]

    def changed(self) -> tuple[Changed, ...]:
        """The best first."""
        beyond = self.goodput.beyond or self.saturation.result
        coming = changes(self.deployment, beyond, self.sample.shares_prefixes)
        found = []
        for change in coming:
            turned: Change | None = change
            while turned is not None:
                found.append(self._turned(turned))
                turned = turned.further if found[-1].gain > 1 else None
        return tuple(sorted(found, key=lambda one: -one.gain))

    @property
    def _base(self) -> float:
        even = self.goodput.poisson
        return self.goodput.rate if even is None else even

    def _turned(self, change: Change) -> Changed:
        base = self._base
        if change.same is not None:
            return Changed(change, base, 1.0)
        self.progress(change.name)
        try:
            limits = change.deployment.limits()
            find = self._served if self.goals == Goals() else self._met
            rate = find(change, limits)
        except ConfigError as error:
            return Changed(change, 0.0, 0.0, refused=str(error))
        return Changed(change, rate, rate / base if base else 1.0)

    def _served(self, change: Change, limits: EngineLimits) -> float:
        """Requests per second of a line that never empties."""
        parts = self.sample.dealt(self.sample.at_once(), change.replicas)
        results = [self.simulator(limits, change.deployment, None).run(part) for part in parts]
        if not any(result.num_finished for result in results):
            raise ConfigError(results[0].first_refusal or "no request can be served")
        return sum(result.request_rate for result in results)

    def _met(self, change: Change, limits: EngineLimits) -> float:
        """The highest rate that meets the goals."""
        sample, base, high = self.sample, self._base, self.goodput.beyond_rate
        if self.goodput.poisson is not None:
            sample = replace(sample, has_times=False)

        def meets(rate: float) -> bool:
            met, spare = 0, most_missed_of(len(sample.requests))
            for part in sample.dealt(sample.at_rate(rate), change.replicas):
                result = self.simulator(limits, change.deployment, spare).run(part)
                met += result.num_met_goals
                spare -= len(part) - result.num_met_goals
                if spare < 0:
                    return False
            return met >= GOAL_SHARE * len(sample.requests)

        if not base:
            guess = 0.7 * self.saturation.request_rate
            return highest_rate(meets, [guess], guess / 70, 30 * guess, _CLOSE)[0]
        copies = change.replicas
        high = high if math.isfinite(high) else base * (1 + _CLOSE)
        if not meets(copies * high):
            return base * copies if meets(copies * base) else 0.0
        return highest_rate(meets, [], 0.0, 30 * copies * base, _CLOSE, low=copies * high)[0]
