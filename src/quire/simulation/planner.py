"""How many users fit, how fast they may come, what binds, and what would change that.

Every answer is a simulation of the sample under other settings; nothing is extrapolated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quire.errors import ConfigError
from quire.metrics import Goals
from quire.simulation.arrivals import ClosedLoop
from quire.simulation.baselines import BASELINES, Baseline
from quire.simulation.deployment import Deployment
from quire.simulation.plan import (
    GOAL_SHARE,
    Capacity,
    Goodput,
    MemoryNeed,
    Plan,
    UserLoad,
    Variant,
)
from quire.simulation.result import SimulationResult
from quire.simulation.sample import Sample
from quire.simulation.settings import Settings
from quire.simulation.simulator import Simulator

BLOCK_SIZES = (8, 16, 32, 64, 128)
_FEW = 200  # requests, for beams: each step of theirs is a step of the scheduler
_BIG_POOL = 1 << 24  # tokens; a pool in which nothing ever waits


@dataclass(frozen=True)
class Planner:
    """Plans for one model on one machine, under one sample of a workload.

    changes: fields of Settings that are not what the deployment would have them.
    """

    deployment: Deployment
    changes: dict[str, object]
    sample: Sample
    goals: Goals
    progress: Callable[[str], None] = lambda _: None  # told what is being simulated

    def plan(self, users: int | None, rate: float | None) -> Plan:
        """The whole plan. ``users``, ``rate``: the load that was asked about."""
        settings = self.settings()
        capacity = self.capacity(settings)
        rate = rate or (self.sample.rate if users is None else None)
        return Plan(
            model=self.deployment.model,
            machine=self.deployment.machine,
            tensor_parallel=self.deployment.tensor_parallel,
            settings=settings,
            kv_bytes=self.deployment.kv_bytes,
            num_requests=len(self.sample.requests),
            num_clipped=self.sample.num_clipped,
            mean_tokens=self.sample.mean_tokens,
            sample_rate=self.sample.rate,
            goals=self.goals,
            capacity=capacity,
            user_load=None if users is None else self.user_load(settings, users),
            most_users=self.most_users(settings, capacity),
            goodput=self.goodput(settings, capacity),
            memory_need=self.memory_need(settings, users, rate),
            variants=self.variants(settings, capacity),
        )

    # -- what fits -----------------------------------------------------------------------------

    def capacity(self, settings: Settings) -> Capacity:
        """Everybody at once: how many run while others wait."""
        self.progress("how many fit")
        result = self._run(settings).run(self.sample.at_once())
        if not result.num_finished:
            raise ConfigError(f"no request of this workload can be served: {result.first_refusal}")
        return Capacity.of(result, width=1)

    def variants(self, settings: Settings, base: Capacity) -> tuple[Variant, ...]:
        """What each change alone would do."""
        deployment, variants = self.deployment, []

        def add(
            name: str, setup: Settings, other: Deployment | None = None, width: int = 1
        ) -> None:
            self.progress(name)
            result = self._run(setup, other).run(self.sample.at_once(width))
            variants.append(Variant.of(name, base, result, width))

        for one in BASELINES:
            name = f"{one.name}: reserves {one.reserves}"
            self.progress(name)
            everybody = one.asks(self.sample.at_once(), settings.max_model_len)
            result = self._run(_contiguous(settings, one)).run(everybody)
            variants.append(Variant.of(name, base, result, 1))
        for size in BLOCK_SIZES:
            if size != settings.block_size and settings.num_blocks * settings.block_size >= size:
                add(f"block size {size}", self.settings(block_size=size))
        if self.sample.shares_prefixes:
            caching = not settings.enable_prefix_caching
            name = f"prefix caching {'on' if caching else 'off'}"
            add(name, replace(settings, enable_prefix_caching=caching))
        if deployment.model.kv_dtype is None:
            small = replace(deployment, model=replace(deployment.model, kv_dtype="fp8"))
            add("KV cache in 8 bits", self.settings(small), small)
        if not settings.num_host_blocks:
            swapping = replace(deployment, swap_bytes=64 * 2**30)
            name = "64 GiB of swap space, used where cheaper than recomputing"
            add(name, self.settings(swapping, preemption_mode="auto"), swapping)
        for width in (2, 4):
            add(f"n = {width} outputs", settings, None, width)
        variants.append(self._beams(settings, 4))
        return tuple(variants)

    def _beams(self, settings: Settings, width: int) -> Variant:
        self.progress(f"{width} beams")
        few = replace(self.sample, requests=self.sample.requests[:_FEW])
        base = Capacity.of(self._run(settings).run(few.at_once()), width=1)
        result = self._run(settings).run(few.at_once(width, beams=True))
        return Variant.of(f"{width} beams (first {len(few.requests)})", base, result, width)

    # -- loads ---------------------------------------------------------------------------------

    def user_load(self, settings: Settings, users: int) -> UserLoad:
        """So many users, each with one request at a time, under each allocator."""
        everybody = replace(settings, max_num_seqs=max(users, 1))
        paged = replace(everybody, kv_allocator="paged")
        self.progress(f"{users} users, paged")
        loads = [("paged", self._closed(paged, users))]
        for one in BASELINES:
            self.progress(f"{users} users, {one.name}")
            loads.append((one.key, self._closed(_contiguous(everybody, one), users, one)))
        return UserLoad(users, tuple(loads))

    def _closed(
        self, settings: Settings, users: int, baseline: Baseline | None = None
    ) -> SimulationResult:
        count = max(len(self.sample.requests), 4 * users)
        workload = self.sample.repeated(count)
        if baseline is not None:
            workload = baseline.asks(workload, settings.max_model_len)
        return self._run(settings).serve(ClosedLoop(workload, users))

    def most_users(self, settings: Settings, capacity: Capacity) -> UserLoad | None:
        """The most users of whose requests GOAL_SHARE meet the goals; None if there are none.

        Raises:
            ConfigError: not even one user's do; with what one user gets.
        """
        if self.goals == Goals():
            return None
        alone = self._closed(settings, 1)
        if alone.goodput_share < GOAL_SHARE:
            raise ConfigError(
                f"goals nobody can meet: a user who is alone has a TTFT of "
                f"{alone.ttft.p90:.3g} s and a TPOT of {alone.tpot.p90:.3g} s at the 90th "
                "percentile; ask for no less, or take a faster machine"
            )
        best, low, high = alone, 1, max(2, 2 * capacity.most_running)
        while low < high:
            users = (low + high + 1) // 2
            self.progress(f"{users} users")
            result = self._closed(settings, users)
            if result.goodput_share >= GOAL_SHARE:
                best, low = result, users
            else:
                high = users - 1
        return UserLoad(low, ((settings.kv_allocator, best),))

    def goodput(self, settings: Settings, capacity: Capacity) -> Goodput:
        """The highest rate at which GOAL_SHARE of the requests meet the goals, to 2 %.

        Without goals it is the rate at which a line that never empties is served.
        """
        if self.goals == Goals():
            return Goodput(capacity.request_rate, None, None)
        found = self._search(settings, self.sample, 1.2 * capacity.request_rate)
        if found.rate or not self.sample.has_times:
            return found
        even = replace(self.sample, has_times=False)
        poisson = self._search(settings, even, 1.2 * capacity.request_rate)
        return found._replace(poisson=poisson.rate)

    def _search(self, settings: Settings, sample: Sample, high: float) -> Goodput:
        low, least, most = 0.0, 1e-2 * high, 16 * high
        best = failed = None
        while failed is None and high <= most:
            result = self._run(settings).run(sample.at_rate(high))
            if result.goodput_share < GOAL_SHARE:
                failed = result
            else:
                best, low, high = result, high, 2 * high
        while high - low > 0.02 * high and high > least:
            rate = (low + high) / 2
            self.progress(f"{rate:.3g} requests/s")
            result = self._run(settings).run(sample.at_rate(rate))
            if result.goodput_share >= GOAL_SHARE:
                best, low = result, rate
            else:
                failed, high = result, rate
        return Goodput(low, best, failed)

    def memory_need(
        self, settings: Settings, users: int | None, rate: float | None
    ) -> MemoryNeed | None:
        """What the load holds at its worst moment, where memory makes nobody wait."""
        if users is None and rate is None:
            return None
        self.progress("memory needed")
        big = replace(settings, num_blocks=_BIG_POOL // settings.block_size, kv_allocator="paged")
        if users is not None:
            load, result = f"{users} users", self._closed(big, users)
        else:
            assert rate is not None
            load = f"{rate:.3g} requests/s"
            result = self._run(big).run(self.sample.at_rate(rate))
        each = self.deployment.model.kv_bytes_per_token
        return MemoryNeed(load, result.most_held * each, result)

    # -- simulations ---------------------------------------------------------------------------

    def settings(self, deployment: Deployment | None = None, **changes: object) -> Settings:
        return (deployment or self.deployment).settings(**{**self.changes, **changes})

    def _run(self, settings: Settings, deployment: Deployment | None = None) -> Simulator:
        costs = (deployment or self.deployment).cost_model(settings.block_size)
        return Simulator(settings, costs, goals=self.goals)


def _contiguous(settings: Settings, baseline: Baseline) -> Settings:
    return replace(settings, kv_allocator=baseline.kv_allocator, enable_prefix_caching=False)
