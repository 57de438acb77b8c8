"""A plan as values: what the planner found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from quire.core.limits import EngineLimits
from quire.engine.capacity import seqs_that_fit
from quire.models.shape import ModelShape
from quire_lab.contiguous import PAGED, name_of
from quire_lab.simulation.catalogue.machines import Machine
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.planning.changes import Change, Changed
from quire_lab.simulation.planning.deployment import Deployment
from quire_lab.simulation.planning.search import CLOSE
from quire_lab.simulation.planning.trials import DraftTrials
from quire_lab.simulation.result import ServedLoad, SimulationResult
from quire_lab.simulation.sample import WorkloadSample

GOAL_SHARE = 0.9
"""Share of the requests that must meet the goals."""

_MISSED = 1.01  # the least strain of what too few requests have met


def most_missed_of(count: int) -> int:
    """How many of these requests may miss the goals."""
    return math.floor((1 - GOAL_SHARE) * count + 1e-6)


def strain_of(result: ServedLoad, goals: Goals) -> float:
    """How near the goals are to being missed; above 1 where too few requests have met them."""
    pairs = ((result.ttft.p90, goals.ttft), (result.tpot.p90, goals.tpot))
    most = max((p90 / goal for p90, goal in pairs if goal is not None), default=0.0)
    return min(most, 1.0) if result.goodput_share >= GOAL_SHARE else max(most, _MISSED)


class Binding(Enum):
    """The limit of the rate."""

    MEMORY = "memory"  # the pool is full, and requests wait for blocks
    COMPUTE = "compute"  # prompts wait for their share of steps
    LATENCY = "latency"  # steps take longer than the goal for a token
    SEQUENCES = "max_num_seqs"


@dataclass(frozen=True)
class Saturation:
    """The results if all requests come at once.

    running: mean number of running requests while others wait; if none wait, all.
    """

    running: float
    most_running: int
    all_at_once: bool
    request_rate: float
    output_rate: float
    result: SimulationResult

    @classmethod
    def of(cls, result: SimulationResult, width: int) -> Saturation:
        """``width``: branches of a request."""
        # From when the pool, or what the steps can take, is nearly full until the line is empty.
        full = 0.9 * max(point.most_held for point in result.series)
        start = next(point.start for point in result.series if point.most_held >= full)
        busy = [p for p in result.series if p.start >= start and p.waiting >= 1.0]
        seconds = sum(point.seconds for point in busy)
        mean = sum(point.running * point.seconds for point in busy) / (seconds or 1.0)
        waited = seconds > 0.0
        return cls(
            running=(mean if waited else result.most_running) / width,
            most_running=result.most_running // width,
            all_at_once=not waited,
            request_rate=result.request_rate,
            output_rate=result.output_rate,
            result=result,
        )


class Variant(NamedTuple):
    """One change and its effect; or why it is impossible.

    base: the results of the same requests without it.
    """

    name: str
    base: Saturation
    saturation: Saturation | None
    refused: str | None

    @classmethod
    def of(cls, name: str, base: Saturation, result: SimulationResult, width: int) -> Variant:
        """``width``: branches of a request."""
        if not result.num_finished:
            return cls(name, base, None, result.first_refusal)
        return cls(name, base, Saturation.of(result, width), None)


class UserLoad(NamedTuple):
    """The results of users with one request at a time each, by allocator."""

    users: int
    results: tuple[tuple[str, SimulationResult], ...]


class Goodput(NamedTuple):
    """The highest rate that is good enough; 0 where the workload's own bursts are too much.

    poisson: with the same requests spread evenly, if the rate is 0.
    beyond_rate: the lowest that was found too high; infinite where none was.
    """

    rate: float  # requests per second
    at: SimulationResult | None  # at that rate
    beyond: SimulationResult | None  # at the lowest rate that was found too high
    poisson: float | None = None
    beyond_rate: float = math.inf


class MemoryNeed(NamedTuple):
    load: str
    num_bytes: int
    result: SimulationResult


@dataclass(frozen=True)
class Plan:
    """The answers for one model, machine and workload."""

    deployment: Deployment
    limits: EngineLimits
    kv_bytes: int
    sample: WorkloadSample
    goals: Goals
    asked_rate: float | None  # requests per second that were asked about, or the workload's own
    saturation: Saturation
    user_load: UserLoad | None
    most_users: UserLoad | None
    goodput: Goodput
    memory_need: MemoryNeed | None
    enough: tuple[Change, ...]  # the cheapest that is; and the cheapest that loses no accuracy
    changed: tuple[Changed, ...]  # the best first
    without_paging: tuple[Variant, ...]
    other_work: tuple[Variant, ...]  # the same requests, but each asks for more
    speculation: DraftTrials | None = None

    @property
    def model(self) -> ModelShape:
        return self.deployment.model

    @property
    def machine(self) -> Machine:
        return self.deployment.machine

    @property
    def tensor_parallel(self) -> int:
        return self.deployment.tensor_parallel

    @property
    def best(self) -> Deployment:
        """With the cheapest changes that are enough; where none are needed, or enough, as it is."""
        return self.enough[0].deployment if self.enough else self.deployment

    @property
    def room(self) -> int:
        """Requests of mean length, at their ends, that the pool holds at one time."""
        return seqs_that_fit(self.limits, math.ceil(sum(self.sample.mean_tokens)))

    @property
    def best_block_size(self) -> int:
        """The largest that serves within 2 % of the best: larger blocks make shorter tables."""
        gains = {self.limits.block_size: 1.0}
        for changed in self.changed:
            if changed.change.knob == "block_size":
                gains[changed.change.deployment.config.block_size] = changed.gain
        best = max(gains.values())
        return max(size for size, gain in gains.items() if gain >= (1 - CLOSE) * best)

    @property
    def binds(self) -> Binding:
        """The limit that keeps the rate from being higher."""
        beyond = self.goodput.beyond or self.saturation.result
        return binding(beyond, self.limits)


def binding(result: SimulationResult, limits: EngineLimits) -> Binding:
    """The first limit that a load above the highest rate has met."""
    full = result.most_held >= 0.95 * limits.num_blocks * limits.block_size
    waits = result.num_decisions.get("wait", 0) > 0
    gave_way = result.preemptions.swaps + result.preemptions.recomputes > 0
    contiguous = name_of(limits) != PAGED  # it can be full of holes
    if not gave_way and result.num_missed_tpot > result.num_missed_ttft:
        return Binding.LATENCY
    if waits and result.most_running >= limits.max_num_seqs:
        return Binding.SEQUENCES
    if gave_way or (waits and (full or contiguous)):
        return Binding.MEMORY
    return Binding.COMPUTE
