"""How many users fit, how fast they may come, what binds, and what would change that.

Every answer is a simulation of the sample under other settings; nothing is extrapolated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quire.capacity import EngineLimits
from quire.errors import ConfigError
from quire.metrics import Goals
from quire.simulation.arrivals import ClosedLoop
from quire.simulation.baselines import BASELINES, Baseline
from quire.simulation.planning.deployment import Deployment
from quire.simulation.planning.plan import (
    GOAL_SHARE,
    Goodput,
    MemoryNeed,
    Plan,
    Saturation,
    UserLoad,
    Variant,
)
from quire.simulation.result import SimulationResult
from quire.simulation.sample import WorkloadSample
from quire.simulation.simulator import Simulator

BLOCK_SIZES = (8, 16, 32, 64, 128)
_FEW = 200  # requests, for beams: each step of theirs is a step of the scheduler
_BIG_POOL = 1 << 24  # tokens; a pool in which nothing ever waits


@dataclass(frozen=True)
class Planner:
    """Plans for one model on one machine, under one sample of a workload."""

    deployment: Deployment
    sample: WorkloadSample
    goals: Goals
    progress: Callable[[str], None] = lambda _: None  # told what is being simulated

    def plan(self, users: int | None, rate: float | None) -> Plan:
        """The whole plan. ``users``, ``rate``: the load that was asked about."""
        limits = self.deployment.limits()
        saturation = self.saturation(limits)
        rate = rate or (self.sample.rate if users is None else None)
        return Plan(
            model=self.deployment.model,
            machine=self.deployment.machine,
            tensor_parallel=self.deployment.tensor_parallel,
            limits=limits,
            kv_bytes=limits.pool_bytes(self.deployment.model.cache()),
            sample=self.sample,
            goals=self.goals,
            saturation=saturation,
            user_load=None if users is None else self.user_load(users),
            most_users=self.most_users(limits, saturation),
            goodput=self.goodput(limits, saturation),
            memory_need=self.memory_need(limits, users, rate),
            variants=self.variants(limits, saturation),
            other_work=self.other_work(limits, saturation),
        )

    # -- what fits -----------------------------------------------------------------------------

    def saturation(self, limits: EngineLimits) -> Saturation:
        """Everybody at once: how many run while others wait."""
        self.progress("how many fit")
        result = self._run(limits).run(self.sample.at_once())
        if not result.num_finished:
            raise ConfigError(f"no request of this workload can be served: {result.first_refusal}")
        return Saturation.of(result, width=1)

    def variants(self, limits: EngineLimits, base: Saturation) -> tuple[Variant, ...]:
        """What each change alone would do."""
        deployment, variants = self.deployment, []

        def add(name: str, other: Deployment) -> None:
            self.progress(name)
            result = self._run(other.limits(), other).run(self.sample.at_once())
            variants.append(Variant.of(name, base, result, 1))

        for one in BASELINES:
            name = f"{one.name}: reserves {one.reserves}"
            self.progress(name)
            contiguous = self._contiguous(one).limits()
            everybody = one.asks(self.sample.at_once(), _longest(contiguous))
            result = self._run(contiguous).run(everybody)
            variants.append(Variant.of(name, base, result, 1))
        for size in BLOCK_SIZES:
            if size != limits.block_size and limits.num_blocks * limits.block_size >= size:
                add(f"block size {size}", deployment.configured(block_size=size))
        if self.sample.shares_prefixes and limits.is_paged:
            caching = not limits.enable_prefix_caching
            name = f"prefix caching {'on' if caching else 'off'}"
            add(name, deployment.configured(enable_prefix_caching=caching))
        if deployment.model.kv_dtype is None:
            small = replace(deployment.model, kv_dtype="fp8")
            add("KV cache in 8 bits", replace(deployment, model=small))
        if not limits.num_host_blocks:
            name = "64 GiB of swap space, used where cheaper than recomputing"
            add(name, deployment.configured(swap_space=64.0, preemption_mode="auto"))
        return tuple(variants)

    def other_work(self, limits: EngineLimits, base: Saturation) -> tuple[Variant, ...]:
        """What more outputs of each request would be: more work, and no improvement."""
        variants = []
        for width in (2, 4):
            self.progress(f"{width} outputs")
            result = self._run(limits).run(self.sample.at_once(width))
            variants.append(Variant.of(f"n = {width} outputs", base, result, width))
        return (*variants, self._beams(limits, 4))

    def _beams(self, limits: EngineLimits, width: int) -> Variant:
        self.progress(f"{width} beams")
        few = replace(self.sample, requests=self.sample.requests[:_FEW])
        base = Saturation.of(self._run(limits).run(few.at_once()), width=1)
        result = self._run(limits).run(few.at_once(width, beams=True))
        return Variant.of(f"{width} beams (first {len(few.requests)})", base, result, width)

    def _contiguous(self, baseline: Baseline) -> Deployment:
        """With contiguous memory."""
        return self.deployment.configured(
            kv_allocator=baseline.kv_allocator, enable_prefix_caching=None
        )

    # -- loads ---------------------------------------------------------------------------------

    def user_load(self, users: int) -> UserLoad:
        """So many users, each with one request at a time, under each allocator."""
        everybody = max(users, self.deployment.config.max_num_seqs)
        paged = self.deployment.configured(kv_allocator="paged", max_num_seqs=everybody)
        self.progress(f"{users} users, paged")
        loads = [("paged", self.closed(paged.limits(), users))]
        for one in BASELINES:
            self.progress(f"{users} users, {one.name}")
            contiguous = self._contiguous(one).configured(max_num_seqs=everybody)
            loads.append((one.key, self.closed(contiguous.limits(), users, one)))
        return UserLoad(users, tuple(loads))

    def closed(
        self, limits: EngineLimits, users: int, baseline: Baseline | None = None
    ) -> SimulationResult:
        """So many users, each with one request at a time."""
        count = max(len(self.sample.requests), 4 * users)
        workload = self.sample.repeated(count)
        if baseline is not None:
            workload = baseline.asks(workload, _longest(limits))
        return self._run(limits).serve(ClosedLoop(workload, users))

    def most_users(self, limits: EngineLimits, saturation: Saturation) -> UserLoad | None:
        """The most users of whose requests GOAL_SHARE meet the goals; None if there are none.

        Raises:
            ConfigError: not even one user's do; with what one user gets.
        """
        if self.goals == Goals():
            return None
        alone = self.closed(limits, 1)
        if alone.goodput_share < GOAL_SHARE:
            raise ConfigError(
                f"goals nobody can meet: a user who is alone has a TTFT of "
                f"{alone.ttft.p90:.3g} s and a TPOT of {alone.tpot.p90:.3g} s at the 90th "
                "percentile; ask for no less, or take a faster machine"
            )
        best, low, high = alone, 1, max(2, 2 * saturation.most_running)
        while low < high:
            users = (low + high + 1) // 2
            self.progress(f"{users} users")
            result = self.closed(limits, users)
            if result.goodput_share >= GOAL_SHARE:
                best, low = result, users
            else:
                high = users - 1
        return UserLoad(low, ((limits.kv_allocator, best),))

    def goodput(self, limits: EngineLimits, saturation: Saturation) -> Goodput:
        """The highest rate at which GOAL_SHARE of the requests meet the goals, to 2 %.

        Without goals it is the rate at which a line that never empties is served.
        """
        if self.goals == Goals():
            return Goodput(saturation.request_rate, None, None)
        found = self._search(limits, self.sample, 1.2 * saturation.request_rate)
        if found.rate or not self.sample.has_times:
            return found
        even = replace(self.sample, has_times=False)
        poisson = self._search(limits, even, 1.2 * saturation.request_rate)
        return found._replace(poisson=poisson.rate)

    def _search(self, limits: EngineLimits, sample: WorkloadSample, high: float) -> Goodput:
        low, least, most = 0.0, 1e-2 * high, 16 * high
        best = failed = None
        while failed is None and high <= most:
            result = self._run(limits).run(sample.at_rate(high))
            if result.goodput_share < GOAL_SHARE:
                failed = result
            else:
                best, low, high = result, high, 2 * high
        while high - low > 0.02 * high and high > least:
            rate = (low + high) / 2
            self.progress(f"{rate:.3g} requests/s")
            result = self._run(limits).run(sample.at_rate(rate))
            if result.goodput_share >= GOAL_SHARE:
                best, low = result, rate
            else:
                failed, high = result, rate
        return Goodput(low, best, failed)

    def memory_need(
        self, limits: EngineLimits, users: int | None, rate: float | None
    ) -> MemoryNeed | None:
        """What the load holds at its worst moment, where memory makes nobody wait."""
        if users is None and rate is None:
            return None
        self.progress("memory needed")
        big = self.deployment.configured(kv_allocator="paged").limits()
        big = big.with_blocks(_BIG_POOL // big.block_size)
        if users is not None:
            load, result = f"{users} users", self.closed(big, users)
        else:
            assert rate is not None
            load = f"{rate:.3g} requests/s"
            result = self._run(big).run(self.sample.at_rate(rate))
        # As if blocks of all KV groups were of one size, where there are several.
        each = self.deployment.model.kv_bytes_per_token // len(big.kv_groups)
        return MemoryNeed(load, result.most_held * each, result)

    def load(self, limits: EngineLimits, users: int | None, rate: float | None) -> SimulationResult:
        """So many users; or requests at this rate; or all of them at once."""
        if users is not None:
            return self.closed(limits, users)
        come = self.sample.at_once() if rate is None else self.sample.at_rate(rate)
        return self._run(limits).run(come)

    # -- simulations ---------------------------------------------------------------------------

    def _run(self, limits: EngineLimits, deployment: Deployment | None = None) -> Simulator:
        deployment = deployment or self.deployment
        costs = deployment.cost_model(limits.block_size)
        return Simulator(
            limits, costs, goals=self.goals, seed=deployment.config.seed,
            drafting=deployment.drafting,
        )  # fmt: skip


def _longest(limits: EngineLimits) -> int:
    assert limits.max_model_len is not None, "contiguous memory is reserved to the end"
    return limits.max_model_len
