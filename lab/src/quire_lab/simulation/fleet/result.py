"""The results of a fleet, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire_lab.simulation.latencies import Distribution, Summary
from quire_lab.simulation.recorder import KeptResults
from quire_lab.simulation.result import RequestRecord, ServedLoad, SimulationResult
from quire_lab.simulation.served import ServedCounter

MOST_LIVES = 256


class Life(NamedTuple):
    """The life of a replica, in seconds of the clock. serves: None: it ended before it could."""

    started: float
    serves: float | None
    ended: float
    failed: bool


@dataclass(frozen=True)
class ReplicaResult:
    """One replica, over all of its lives.

    num_sent: requests, each time that one was. lost_tokens: of outputs, that clients had been sent.
    dollars_per_hour: of all its machines; None: unknown.
    paid_seconds: from each start to the end after it, loading and failures included.
    served_seconds: in which it could serve.
    lives: the first MOST_LIVES of them.
    result: of the requests that ended here, with all that they had waited elsewhere before; of
        prompts alone, where others go on.
    """

    slot: int
    kind: str
    num_machines: int
    dollars_per_hour: float | None
    role: str
    num_sent: int
    num_lost: int
    num_failures: int
    lost_tokens: int
    lost_block_seconds: float
    paid_seconds: float
    served_seconds: float
    fetched_tokens: int
    lives: tuple[Life, ...]
    result: SimulationResult

    @property
    def utilisation(self) -> float:
        """Share of the time in which it could serve that it was in steps."""
        served = self.served_seconds
        return self.result.busy_seconds / served if served else 0.0


@dataclass(frozen=True)
class FleetResult(ServedLoad):
    """What came of a workload. Latencies are from a request's first arrival to its last end.

    num_lost: times that a request was lost; num_resent: requests to which that happened, of which
    resent_ttft and resent_e2e are. transfers: seconds from a prompt's end to when its blocks are
    where they are needed. most_serving: replicas at one time.
    """

    seconds: float
    num_finished: int
    num_refused: int
    num_met_goals: int
    tokens_in: int
    tokens_out: int
    ttft: Summary
    tpot: Summary
    normalized_latency: Summary
    e2e_latency: Summary
    num_lost: int
    num_resent: int
    resent_ttft: Summary
    resent_e2e: Summary
    transfers: Summary
    transferred_bytes: int
    most_serving: int
    first_refusal: str | None
    replicas: tuple[ReplicaResult, ...]

    @property
    def mean_under_way(self) -> float:
        """Requests, by Little's law."""
        return self.request_rate * self.e2e_latency.mean

    @property
    def machine_seconds(self) -> float:
        """Seconds of machines that were paid for."""
        return sum(one.paid_seconds * one.num_machines for one in self.replicas)

    @property
    def dollars(self) -> float | None:
        """The price of that; None: a price is missing."""
        total = 0.0
        for one in self.replicas:
            if one.dollars_per_hour is None:
                return None
            total += one.dollars_per_hour * one.paid_seconds / 3600
        return total

    @property
    def tokens(self) -> int:
        """Tokens of prompts and outputs."""
        return self.tokens_in + self.tokens_out

    @property
    def hit_share(self) -> float:
        """The share of prompt tokens that were found in a replica's prefix cache."""
        caches = [one.result.prefix_cache for one in self.replicas]
        queries = sum(cache.queries for cache in caches)
        return sum(cache.hits for cache in caches) / queries if queries else 0.0

    @property
    def utilisation(self) -> float:
        """Share of the time in which replicas could serve that they were in steps."""
        served = sum(one.served_seconds for one in self.replicas)
        busy = sum(one.result.busy_seconds for one in self.replicas)
        return busy / served if served else 0.0

    @property
    def num_preemptions(self) -> int:
        each = (one.result.preemptions for one in self.replicas)
        return sum(one.swaps + one.recomputes for one in each)


class FleetRecorder:
    """Adds up what clients see, in memory that does not grow."""

    def __init__(self, kept: KeptResults) -> None:
        self._kept = kept
        self.transfers = Distribution()
        self.transferred_bytes = self.num_lost = self.most_serving = 0
        self._served = ServedCounter(kept.goals)
        self._num_resent = 0
        self._resent_ttft, self._resent_e2e = Distribution(), Distribution()

    @property
    def gives_up(self) -> bool:
        """Whether too many requests have missed the goals, or were refused."""
        return self._kept.gives_up(self._served.num_missed)

    def end(self, record: RequestRecord, times_lost: int) -> None:
        """A request is over, for its client."""
        self._served.end(record)
        self._num_resent += times_lost > 0
        if times_lost and record.metrics is not None:
            self._resent_ttft.add(record.metrics.ttft or 0.0)
            self._resent_e2e.add(record.metrics.e2e_latency)

    def result(self, seconds: float, replicas: Sequence[ReplicaResult]) -> FleetResult:
        return FleetResult(
            seconds=seconds,
            **self._served.figures(),
            num_lost=self.num_lost,
            num_resent=self._num_resent,
            resent_ttft=self._resent_ttft.summary(),
            resent_e2e=self._resent_e2e.summary(),
            transfers=self.transfers.summary(),
            transferred_bytes=self.transferred_bytes,
            most_serving=self.most_serving,
            replicas=tuple(replicas),
        )
