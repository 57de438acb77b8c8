"""How many users fit, how fast they may come, what binds, and what would change that.

Every answer is a simulation of the sample under other settings; nothing is extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from quire.core.errors import ConfigError
from quire.core.limits import EngineLimits
from quire.engine.traces.request import TraceRequest
from quire.execution.kv_bytes import bytes_of_pool
from quire_lab.contiguous import PAGED, name_of
from quire_lab.simulation.arrivals import Arrivals, ClosedLoop, OpenLoop
from quire_lab.simulation.baselines import BASELINES, Baseline
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.planning.combination import cheapest
from quire_lab.simulation.planning.deployment import Deployment
from quire_lab.simulation.planning.nameless import OnStep, nameless, nobody_gives_way, sooner
from quire_lab.simulation.planning.plan import (
    GOAL_SHARE,
    Goodput,
    MemoryNeed,
    Plan,
    Saturation,
    UserLoad,
    Variant,
    most_missed_of,
    strain_of,
)
from quire_lab.simulation.planning.ranking import ChangeRanking
from quire_lab.simulation.planning.search import foreseen, highest_count, highest_rate
from quire_lab.simulation.recorder import KeptResults
from quire_lab.simulation.result import SimulationResult
from quire_lab.simulation.sample import WorkloadSample
from quire_lab.simulation.simulator import Simulator

_FEW = 200  # requests, for beams: each step of theirs is a step of the scheduler
_NEAR = 0.9  # of what a line that never empties gets: about what meets goals that can be met
BIG_POOL = 1 << 24  # tokens; a pool in which nothing ever waits


@dataclass(frozen=True)
class Planner:
    """Plans for one model on one machine, under one sample of a workload."""

    deployment: Deployment
    sample: WorkloadSample
    goals: Goals
    progress: Callable[[str], None] = lambda _: None  # called with what is being simulated
    prices: Mapping[str, float] = field(default_factory=dict)  # of machines, dollars an hour

    def plan(self, users: int | None, rate: float | None) -> Plan:
        """The whole plan. ``users``, ``rate``: the load to plan for."""
        limits = self.deployment.limits()
        saturation = self.saturation(limits)
        rate = rate or (self.sample.rate if users is None else None)
        goodput = self.goodput(limits, saturation)
        if not goodput.rate and not goodput.poisson:
            self.alone(limits)  # or else nobody can meet them
        ranking = ChangeRanking(
            self.deployment,
            self.sample,
            self.goals,
            saturation,
            goodput,
            self.simulator,
            self.progress,
            rate,
            self.prices,
        )
        return Plan(
            deployment=self.deployment,
            limits=limits,
            kv_bytes=bytes_of_pool(limits, self.deployment.cache),
            sample=self.sample,
            goals=self.goals,
            asked_rate=rate,
            saturation=saturation,
            user_load=None if users is None else self.user_load(users),
            most_users=self.most_users(limits, saturation, goodput),
            goodput=goodput,
            memory_need=self.memory_need(limits, users, rate),
            enough=() if ranking.is_served else cheapest(ranking),
            changed=ranking.changed(),
            without_paging=self.without_paging(saturation),
            other_work=self.other_work(limits, saturation),
        )

    # -- what fits -----------------------------------------------------------------------------

    def saturation(self, limits: EngineLimits) -> Saturation:
        """Everybody at once: how many run while others wait."""
        self.progress("how many fit")
        result = self._run(limits, self.sample.at_once)
        if not result.num_finished:
            raise ConfigError(f"no request of this workload can be served: {result.first_refusal}")
        return Saturation.of(result, width=1)

    def without_paging(self, base: Saturation) -> tuple[Variant, ...]:
        """What fits if each sequence has one region."""
        variants = []
        for one in BASELINES:
            name = f"{one.name}: reserves {one.reserves}"
            self.progress(name)
            contiguous = self._contiguous(one).limits()
            everybody = one.asks(self.sample.at_once(), _longest(contiguous))
            result = self.simulator(contiguous).run(everybody)
            variants.append(Variant.of(name, base, result, 1))
        return tuple(variants)

    def other_work(self, limits: EngineLimits, base: Saturation) -> tuple[Variant, ...]:
        """The effect of more outputs per request: more work, and no improvement."""
        variants = []
        for width in (2, 4):
            self.progress(f"{width} outputs")
            result = self._run(limits, partial(self.sample.at_once, width))
            variants.append(Variant.of(f"n = {width} outputs", base, result, width))
        return (*variants, self._beams(limits, 4))

    def _beams(self, limits: EngineLimits, width: int) -> Variant:
        self.progress(f"{width} beams")
        few = replace(self.sample, requests=self.sample.requests[:_FEW])
        base = Saturation.of(self._run(limits, few.at_once), width=1)
        result = self._run(limits, partial(few.at_once, width, beams=True))
        return Variant.of(f"{width} beams (first {len(few.requests)})", base, result, width)

    def _contiguous(self, baseline: Baseline) -> Deployment:
        """The results with contiguous memory."""
        return self.deployment.under(baseline.kv_allocator).configured(enable_prefix_caching=None)

    # -- loads ---------------------------------------------------------------------------------

    def user_load(self, users: int) -> UserLoad:
        """This many users, each with one request at a time, under each allocator."""
        everybody = max(users, self.deployment.config.max_num_seqs)
        paged = self.deployment.under(PAGED).configured(max_num_seqs=everybody)
        self.progress(f"{users} users, paged")
        loads = [("paged", self.closed(paged.limits(), users))]
        for one in BASELINES:
            self.progress(f"{users} users, {one.name}")
            contiguous = self._contiguous(one).configured(max_num_seqs=everybody)
            loads.append((one.key, self.closed(contiguous.limits(), users, one)))
        return UserLoad(users, tuple(loads))

    def closed(
        self,
        limits: EngineLimits,
        users: int,
        baseline: Baseline | None = None,
        gives_up: bool = False,
    ) -> SimulationResult:
        """This many users, each with one request at a time.

        ``gives_up``: once too many have missed the goals.
        """
        count = max(len(self.sample.requests), 4 * users)
        most_missed = most_missed_of(count) if gives_up else None

        def arrivals() -> ClosedLoop:
            workload = self.sample.repeated(count)
            if baseline is not None:
                workload = baseline.asks(workload, _longest(limits))
            return ClosedLoop(workload, users)

        return self._serve(limits, arrivals, most_missed)

    def alone(self, limits: EngineLimits) -> None:
        """See that a user who is alone meets the goals, if there are any.

        Raises:
            ConfigError: with the latencies.
        """
        if self.goals == Goals():
            return
        alone = self.closed(limits, 1)
        if alone.goodput_share < GOAL_SHARE:
            raise ConfigError(
                f"goals nobody can meet: a user who is alone has a TTFT of "
                f"{alone.ttft.p90:.3g} s and a TPOT of {alone.tpot.p90:.3g} s at the 90th "
                "percentile; ask for no less, or take a faster machine"
            )

    def most_users(
        self,
        limits: EngineLimits,
        saturation: Saturation,
        goodput: Goodput,
    ) -> UserLoad | None:
        """The most users of whose requests GOAL_SHARE meet the goals; None if there are none.

        One does: who is alone is served no later than among others.
        """
        if self.goals == Goals():
            return None
        found: dict[int, SimulationResult] = {}

        def meets(users: int) -> bool:
            self.progress(f"{users} users")
            found[users] = self.closed(limits, users, gives_up=True)
            return found[users].goodput_share >= GOAL_SHARE

        # Little's law: the requests under way at the highest rate.
        at = goodput.at
        hint = saturation.most_running if at is None else round(goodput.rate * at.e2e_latency.mean)
        best = highest_count(meets, max(2, hint), max(2, 2 * saturation.most_running))
        result = found[best] if best in found else self.closed(limits, best)
        return UserLoad(best, ((name_of(limits), result),))

    def goodput(self, limits: EngineLimits, saturation: Saturation) -> Goodput:
        """The highest rate at which GOAL_SHARE of the requests meet the goals, to 2 %.

        Without goals it is the rate at which a line that never empties is served.
        """
        if self.goals == Goals():
            return Goodput(saturation.request_rate, None, None)
        found = self._search(limits, self.sample, saturation)
        if found.rate or not self.sample.has_times:
            return found
        poisson = self._search(limits, replace(self.sample, has_times=False), saturation)
        return found._replace(poisson=poisson.rate, beyond_rate=poisson.beyond_rate)

    def _search(
        self, limits: EngineLimits, sample: WorkloadSample, saturation: Saturation
    ) -> Goodput:
        found: dict[float, SimulationResult] = {}
        guess = 0.7 * saturation.request_rate  # where a search begins that foresees nothing

        def strain(rate: float) -> float:
            self.progress(f"{rate:.3g} requests/s")
            spare = most_missed_of(len(sample.requests))
            found[rate] = self._run(limits, partial(sample.at_rate, rate), spare)
            return strain_of(found[rate], self.goals)

        def search(meets: Callable[[float], bool]) -> tuple[float, float]:
            return highest_rate(meets, [guess], guess / 70, 30 * guess)

        low, high = foreseen(search, strain, _NEAR * saturation.request_rate)
        # A failed run has stopped early: run it whole once.
        beyond = None if high == math.inf else self._run(limits, partial(sample.at_rate, high))
        return Goodput(low, found.get(low), beyond, beyond_rate=high)

    def memory_need(
        self, limits: EngineLimits, users: int | None, rate: float | None
    ) -> MemoryNeed | None:
        """The most memory that the load holds if no request ever waits for memory."""
        if users is None and rate is None:
            return None
        self.progress("memory needed")
        big = self.deployment.under(PAGED).limits()
        big = big.with_blocks(BIG_POOL // big.block_size)
        if users is not None:
            load, result = f"{users} users", self.closed(big, users)
        else:
            assert rate is not None
            load = f"{rate:.3g} requests/s"
            result = self._run(big, partial(self.sample.at_rate, rate))
        # As if blocks of all KV groups were of one size, where there are several.
        each = self.deployment.kv_bytes_per_token // len(big.kv_groups)
        return MemoryNeed(load, result.most_held * each, result)

    def load(self, limits: EngineLimits, users: int | None, rate: float | None) -> SimulationResult:
        """The results of users; or of requests at this rate; or of all of them at once."""
        if users is not None:
            return self.closed(limits, users)
        come = self.sample.at_once() if rate is None else self.sample.at_rate(rate)
        return self.simulator(limits).run(come)

    # -- simulations ---------------------------------------------------------------------------

    def simulator(
        self,
        limits: EngineLimits,
        deployment: Deployment | None = None,
        most_missed: int | None = None,
        on_step: OnStep | None = None,
    ) -> Simulator:
        deployment = deployment or self.deployment
        costs = deployment.cost_model(limits.block_size)
        kept, seed = KeptResults(self.goals, most_missed=most_missed), deployment.config.seed
        drafting = deployment.drafting
        return Simulator(limits, costs, kept, seed=seed, drafting=drafting, on_step=on_step)

    def _run(
        self,
        limits: EngineLimits,
        come: Callable[[], Iterable[TraceRequest]],
        most_missed: int | None = None,
    ) -> SimulationResult:
        return self._serve(limits, lambda: OpenLoop(come()), most_missed)

    def _serve(
        self, limits: EngineLimits, arrivals: Callable[[], Arrivals], most_missed: int | None
    ) -> SimulationResult:
        """Without names of blocks, if these do not matter: of no plan's figures is one theirs."""

        def served(limits: EngineLimits, on_step: OnStep | None = None) -> SimulationResult:
            simulator = self.simulator(limits, most_missed=most_missed, on_step=on_step)
            return simulator.serve(arrivals())

        plain = nameless(limits, self.sample)
        without = None if plain is None else partial(served, plain, nobody_gives_way)
        return sooner(without, partial(served, limits))


def _longest(limits: EngineLimits) -> int:
    assert limits.max_model_len is not None, "contiguous memory is reserved to the end"
    return limits.max_model_len
