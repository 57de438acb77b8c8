"""The results of a simulation: frozen values, for reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from quire.core.memory import Usage
from quire.core.protocol import Decision
from quire.engine.metrics import RequestMetrics
from quire.engine.traces.request import DraftCounts
from quire_lab.simulation.latencies import Summary
from quire_lab.simulation.series import Point


class Preempted(NamedTuple):
    """A request gave way and came back. Times in seconds."""

    by: str  # "swap" or "recompute"
    at: float
    until: float | None  # None: it had not come back when this was written


@dataclass(frozen=True)
class RequestRecord:
    """The story of one request that has ended or was refused."""

    request_id: str
    metrics: RequestMetrics | None  # None if it was refused
    admitted: float | None  # seconds, the first time
    preemptions: tuple[Preempted, ...] = ()
    refused: str | None = None  # why


class TimedDecision(NamedTuple):
    time: float  # seconds
    decision: Decision


class RequestHolding(NamedTuple):
    """What one request held on the device."""

    request_id: str
    outputs: int
    tokens: int  # of its longest output, with the prompt
    blocks: int  # distinct ones
    shared: int  # of them, held by another output or request too


@dataclass(frozen=True)
class Instant:
    """Who held which block at one instant, once the step under way had its blocks."""

    time: float  # seconds: when that step began
    block_size: int
    holdings: tuple[RequestHolding, ...]
    recording: bytes  # of this instant, as a page shows it


class Preemptions(NamedTuple):
    swaps: int
    recomputes: int
    swapped_blocks: int  # to the host or back


class PrefixCounts(NamedTuple):
    """Tokens of prompts at their first admission, and where they were found or missed."""

    queries: int
    hits: int
    evicted: int  # had been cached, until their blocks were needed
    tails: int  # in a prompt's last, partly filled block


class ServedLoad:
    """The outcome of requests, of one engine or of many."""

    seconds: float
    num_finished: int
    num_refused: int
    num_met_goals: int
    tokens_out: int
    first_refusal: str | None
    ttft: Summary
    tpot: Summary

    @property
    def goodput_share(self) -> float:
        """Share of all requests, refused ones included, that met the goals."""
        total = self.num_finished + self.num_refused
        return self.num_met_goals / total if total else 0.0

    @property
    def request_rate(self) -> float:
        """Requests finished per second, from the first arrival to the end."""
        return self.num_finished / self.seconds if self.seconds else 0.0

    @property
    def output_rate(self) -> float:
        """Output tokens per second, from the first arrival to the end."""
        return self.tokens_out / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class SimulationResult(ServedLoad):
    """The result of a workload. Memory in slots (tokens) or blocks, times in seconds.

    records and decisions hold no more than was asked for; the counts are of all.
    """

    block_size: int
    num_blocks: int
    seconds: float  # from the first arrival to the end of the last step
    busy_seconds: float  # in steps
    num_steps: int
    num_finished: int
    num_refused: int
    num_met_goals: int  # of finished ones; all of them without goals
    num_missed_ttft: int
    num_missed_tpot: int
    tokens_in: int  # prompt tokens of the requests that finished
    tokens_out: int
    num_decisions: Mapping[str, int]  # by verdict
    preemptions: Preemptions
    prefix_cache: PrefixCounts
    drafts: DraftCounts
    ttft: Summary
    tpot: Summary
    itl: Summary
    normalized_latency: Summary
    e2e_latency: Summary
    queueing: Summary  # from arrival to first admission
    mean_running: float  # sequences in a step, over the time of all steps
    most_running: int
    most_held: int  # most slots in held blocks at one time
    mean_usage: Usage  # slots over the time of all steps, rounded
    saved_blocks_share: float  # of all blocks without sharing among branches, requests at peak
    first_refusal: str | None
    series: tuple[Point, ...]
    records: tuple[RequestRecord, ...]
    decisions: tuple[TimedDecision, ...]

    @property
    def kv_efficiency(self) -> float | None:
        """Share of the KV memory taken from the pool that held tokens' states, over time.

        PagedAttention, figure 2; the parts that are not used are waste.
        """
        usage = self.mean_usage
        taken = usage.used + usage.reserved + usage.internal + usage.external
        return usage.used / taken if taken else None

    @property
    def tokens_per_step(self) -> float:
        """Output tokens per step that produced any: 1 if no draft was right."""
        steps = self.tokens_out - self.drafts.num_accepted_tokens
        return self.tokens_out / steps if steps else 1.0
