"""What /v1/quire answers, as it is made and as /docs tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.dashboard import BranchTable, Pool, PrefixCache, Row, Rows
from quire.engine import Percentiles, Rates


@dataclass(frozen=True)
class DecisionTold:
    """number: of all decisions, from 1. time: in seconds since 1970.

    swap_seconds, recompute_seconds: what either way of preempting it costs.
    """

    number: int
    time: float
    what: Literal["admit", "wait", "swap", "recompute", "resume", "refuse", "expire", "draft"]
    request_id: str
    why: str
    needed: int | None
    free: int | None
    unit: Literal["blocks", "sequences"]
    swap_seconds: float | None
    recompute_seconds: float | None
    remedy: str | None


@dataclass(frozen=True)
class Latencies:
    """first_token: from a request's arrival. between_tokens: of one output."""

    first_token: Percentiles
    between_tokens: Percentiles


@dataclass(frozen=True)
class Speculating:
    """drafts: times that a sequence was drafted for in a step."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int


@dataclass(frozen=True)
class SessionTold:
    """number: as blocks have it for their owner. busy: it has a turn."""

    id: str
    number: int
    tokens: int
    busy: bool
    cache_epoch: int
    blocks: int


@dataclass(frozen=True)
class AdapterTold:
    """running: it has one of the slots."""

    name: str
    running: bool
    in_memory: bool


@dataclass(frozen=True)
class StoreTold:
    """bytes: on disk, of all engines that share the store."""

    bytes: int
    writing: bool
    read_blocks: int
    written_blocks: int
    evicted_blocks: int
    bad_blocks: int


@dataclass(frozen=True, kw_only=True)
class EngineState:
    """The engine between two steps. Counters are since its start; parts that are off are null.

    step: how many there have been. time: in seconds since 1970. slot_seconds: the pool's slots by
    what they did, over the time of all steps; kv_efficiency: of those taken, the share that was
    used. queue_predicted_seconds: until all that wait now have been let in.
    """

    object: Literal["quire.state"] = "quire.state"
    model: str
    version: str
    time: float
    step: int
    pool: Pool
    slot_seconds: dict[str, float]
    kv_efficiency: float | None
    requests: Rows
    queue_predicted_seconds: float
    rates: Rates
    latencies: Latencies
    prefix_cache: PrefixCache
    decisions: dict[str, int]
    latest_decision: int
    last_preemption: DecisionTold | None
    speculation: Speculating | None
    num_sessions: int
    sessions: list[SessionTold]
    adapters: list[AdapterTold] | None
    ranks: int | None
    store: StoreTold | None


@dataclass(frozen=True, kw_only=True)
class DecisionList:
    """latest: the number of the latest of all."""

    object: Literal["list"] = "list"
    data: list[DecisionTold]
    latest: int


@dataclass(frozen=True, kw_only=True)
class RequestStory:
    """A request that has not ended. prompt, outputs: only with --dashboard-show-text."""

    object: Literal["quire.request"] = "quire.request"
    step: int
    request: Row
    tables: list[BranchTable]
    decisions: list[DecisionTold]
    prompt: str | None
    outputs: list[str] | None
