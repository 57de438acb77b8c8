"""The fewest machines that meet the goals, machine by machine; and what a budget gets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from quire.core.errors import ConfigError
from quire_lab.simulation.arrivals import Arrivals, ClosedLoop, OpenLoop
from quire_lab.simulation.fleet import FleetResult, FleetSetup, FleetSimulator, ReplicaKind
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.planning.deployment import Deployment
from quire_lab.simulation.planning.plan import GOAL_SHARE, Saturation, most_missed_of
from quire_lab.simulation.planning.planner import Planner
from quire_lab.simulation.planning.search import highest_rate, lowest_count
from quire_lab.simulation.recorder import KeptResults
from quire_lab.simulation.sample import WorkloadSample

MOST_REPLICAS = 256
_CLOSE = 0.05  # share to which a budget's rate is found
LASTS = 30.0
"""Seconds that a load should last at least: a shorter one ends before a queue has grown."""


@dataclass(frozen=True)
class Option:
    """One machine, as many of them as are needed.

    replicas: of ``deployment`` each; 0: not possible, for the reason in ``refused``.
    result: the results of the load then.
    afforded: replicas that the budget pays for; afforded_rate: requests per second that these serve
        within the goals. None: without a budget, or without a price.
    """

    deployment: Deployment
    replicas: int = 0
    result: FleetResult | None = None
    refused: str | None = None
    afforded: int | None = None
    afforded_rate: float | None = None

    @property
    def machines(self) -> int:
        return self.replicas * self.deployment.tensor_parallel

    @property
    def price(self) -> float | None:
        """Dollars per hour of all its machines."""
        each = self.deployment.dollars
        return None if each is None or not self.replicas else each * self.replicas

    @property
    def watts(self) -> float | None:
        """The machines' own, at most."""
        each = self.deployment.machine.watts
        return None if each is None or not self.replicas else each * self.machines

    def per_million(self, tokens_per_second: float) -> float | None:
        """Dollars for a million tokens, while the load lasts."""
        if self.price is None or not tokens_per_second:
            return None
        return self.price / (tokens_per_second * 3600) * 1e6

    @property
    def per_million_tokens(self) -> float | None:
        """Dollars per million tokens of prompts and outputs together."""
        result = self.result
        if result is None or not result.seconds:
            return None
        return self.per_million((result.tokens_in + result.tokens_out) / result.seconds)

    @property
    def per_million_outputs(self) -> float | None:
        return None if self.result is None else self.per_million(self.result.output_rate)

    @property
    def per_user(self) -> float | None:
        """Dollars an hour for each request that is under way."""
        if self.price is None or self.result is None or not self.result.mean_under_way:
            return None
        return self.price / self.result.mean_under_way


@dataclass(frozen=True)
class MachineSearch:
    """Tries machines for one load: users, or requests at a rate.

    base: the model and its settings; its tensor parallel size is the smallest one that is tried.
    """

    base: Deployment
    sample: WorkloadSample
    goals: Goals
    routing: str
    users: int | None
    rate: float | None
    progress: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        if self.goals == Goals():
            raise ConfigError("fewest_machines needs goals to meet: give --ttft, --tpot or both")
        if self.users is None and self.rate is None:
            raise ConfigError(
                "fewest_machines needs a load: give --rate, --users, or a trace that has times"
            )

    def option(self, deployment: Deployment, budget: float | None) -> Option:
        """The fewest of this machine, by whatever tensor parallel takes fewest."""
        best, refused = None, ""
        for each in self._divided(deployment):
            try:
                found = self._fewest(each, None if best is None else best.machines - 1)
            except ConfigError as error:
                refused = refused or str(error)
                continue
            if found is not None:
                best = found
        if best is None:
            why = refused or f"not even {MOST_REPLICAS} replicas meet the goals"
            return Option(deployment, refused=why)
        return best if budget is None else self._within(best, budget)

    def at(self, option: Option, share: float) -> tuple[float, FleetResult]:
        """A share of the load, and its results with these machines."""
        other = self
        if self.users is not None:
            other = replace(self, users=max(1, round(share * self.users)))
        rate = None if self.rate is None else share * self.rate
        load = float(other.users or rate or 0.0)
        self.progress(f"{load:.3g} on {option.replicas} x {option.deployment.name}, for the page")
        result = other._served(option.deployment, option.replicas, rate, whole=True)
        return load, result

    def _divided(self, deployment: Deployment) -> Iterator[Deployment]:
        parallel = deployment.tensor_parallel
        while parallel <= max(deployment.machine.per_node, deployment.tensor_parallel):
            try:
                yield replace(deployment, tensor_parallel=parallel)
            except ConfigError:
                return  # the heads are not divided so
            if deployment.costs is not None:
                return
            parallel *= 2

    def _fewest(self, deployment: Deployment, most_machines: int | None) -> Option | None:
        """The fewest machines; None: more are needed. ConfigError: it is impossible."""
        parallel = deployment.tensor_parallel
        most = MOST_REPLICAS if most_machines is None else most_machines // parallel
        if not most:
            return None
        planner = Planner(deployment, self.sample, self.goals)
        limits = deployment.limits()
        planner.alone(limits)
        base = planner.saturation(limits)
        found: dict[int, FleetResult] = {}

        def meets(count: int) -> bool:
            self.progress(f"{count} x {parallel} x {deployment.machine.name}")
            found[count] = self._served(deployment, count, self.rate)
            return found[count].goodput_share >= GOAL_SHARE

        count = lowest_count(meets, self._hint(base), 1, most)
        return None if count is None else Option(deployment, count, found[count])

    def _hint(self, base: Saturation) -> int:
        """The number that would serve the load if it came at once."""
        if self.users is None:
            return math.ceil((self.rate or 0.0) / base.request_rate)
        return math.ceil(self.users / max(1.0, base.running))

    def _served(
        self, deployment: Deployment, count: int, rate: float | None, whole: bool = False
    ) -> FleetResult:
        """The results of the load, or of this rate; only a part, once too many have missed the
        goals, unless the ``whole`` is wanted.
        """
        arrivals, requests = self._arrivals(rate)
        simulator = FleetSimulator(
            FleetSetup((ReplicaKind(deployment),) * count, self.routing),
            KeptResults(self.goals, most_missed=None if whole else most_missed_of(requests)),
            seed=deployment.config.seed,
        )
        return simulator.serve(arrivals)

    def _arrivals(self, rate: float | None) -> tuple[Arrivals, int]:
        """And how many requests there are: without times of their own, enough to last."""
        sample, count = self.sample, len(self.sample.requests)
        if self.users is not None:
            count = max(count, 4 * self.users)
            return ClosedLoop(sample.repeated(count), self.users), count
        assert rate is not None, "it was checked"
        if not sample.has_times:
            count = max(count, math.ceil(rate * LASTS))
            sample = replace(sample, requests=tuple(sample.repeated(count)))
        return OpenLoop(sample.at_rate(rate)), count

    def _within(self, option: Option, budget: float) -> Option:
        """The option with what the budget buys of it."""
        each, deployment = option.deployment.dollars, option.deployment
        if each is None:
            return option
        count = min(MOST_REPLICAS, int(budget / each + 1e-9))
        if not count or self.rate is None:
            return replace(option, afforded=count)
        self.progress(f"{count} x {deployment.machine.name} for the budget")
        guess = self.rate * count / option.replicas

        def meets(rate: float) -> bool:
            return self._served(deployment, count, rate).goodput_share >= GOAL_SHARE

        rate, _ = highest_rate(meets, [guess], guess / 30, 30 * guess, _CLOSE)
        return replace(option, afforded=count, afforded_rate=rate)
