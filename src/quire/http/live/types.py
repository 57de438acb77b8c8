"""What /v1/quire answers, as it is made and as /docs tells it."""

from __future__ import annotations

from typing import Literal

from quire.engine.dashboard import BranchTable, Holder, Pool, PrefixCacheFigures, Row, Rows
from quire.engine.part_times import StepParts
from quire.engine.stats import Percentiles, Rates
from quire.http.answers.rendering import Answer


class DecisionRow(Answer):
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


class Latencies(Answer):
    """first_token: from a request's arrival. between_tokens: of one output."""

    first_token: Percentiles
    between_tokens: Percentiles


class SpeculationFigures(Answer):
    """drafters: in the order in which they are heard. drafts: times that a sequence was drafted for
    in a step. accepted_by_position: drafts that were right, the first of each time first. bytes: of
    memory that drafters hold.
    """

    drafters: list[str]
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_by_position: list[int]
    bytes: int


class SettingsInForce(Answer):
    """What bounds who runs and who waits, by names of `quire serve`'s settings; null: none."""

    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_waiting: int | None
    max_queue_time: float | None
    scheduling_policy: str
    session_timeout: float | None


class SessionRow(Answer):
    """number: as blocks have it for their owner. busy: it has a turn."""

    id: str
    number: int
    tokens: int
    busy: bool
    cache_epoch: int
    blocks: int


class AdapterRow(Answer):
    """running: it has one of the slots."""

    name: str
    running: bool
    in_memory: bool


class StoreFigures(Answer):
    """bytes: on disk, of all engines that share the store."""

    bytes: int
    writing: bool
    read_blocks: int
    written_blocks: int
    evicted_blocks: int
    bad_blocks: int


class Moment(Answer, kw_only=True):
    """What changes in an engine. Counters are since its start.

    step: how many there have been. time: in seconds since 1970. slot_seconds: the pool's slots by
    what they did, over the time of all steps.
    """

    time: float
    step: int
    pool: Pool
    slot_seconds: dict[str, float]
    requests: Rows
    rates: Rates
    latencies: Latencies
    prefix_cache: PrefixCacheFigures
    decisions: dict[str, int]
    speculation: SpeculationFigures | None


class MomentList(Answer, kw_only=True):
    """Of the latest ten minutes, oldest first, without those who ran or waited."""

    object: Literal["list"] = "list"
    data: list[Moment]


class EngineState(Moment, kw_only=True):
    """The engine between two steps. Parts that are off are null.

    kv_efficiency: of the slots that were taken, over time, the share that was used.
    queue_predicted_seconds: until all that wait now have been let in. step_parts: timed only while
    somebody asks for the state; null until a step has been.
    """

    object: Literal["quire.state"] = "quire.state"
    model: str
    version: str
    kv_efficiency: float | None
    queue_predicted_seconds: float
    step_parts: StepParts | None
    latest_decision: int
    last_preemption: DecisionRow | None
    settings: SettingsInForce
    num_sessions: int
    sessions: list[SessionRow]
    adapters: list[AdapterRow] | None
    ranks: int | None
    store: StoreFigures | None


class DecisionList(Answer, kw_only=True):
    """latest: the number of the latest of all."""

    object: Literal["list"] = "list"
    data: list[DecisionRow]
    latest: int


class AbortedRequest(Answer, kw_only=True):
    """A request that has been ended."""

    id: str
    object: Literal["quire.request"] = "quire.request"
    aborted: Literal[True] = True


class RequestStory(Answer, kw_only=True):
    """A request that has not ended. prompt, outputs: only with --dashboard-show-text."""

    object: Literal["quire.request"] = "quire.request"
    step: int
    request: Row
    tables: list[BranchTable]
    decisions: list[DecisionRow]
    prompt: str | None
    outputs: list[str] | None


class BlockStory(Answer, kw_only=True):
    """One block at this step. kv_group: whose pool it is in. holders: the first 32 of them."""

    object: Literal["quire.block"] = "quire.block"
    step: int
    block: int
    kv_group: int
    num_holders: int
    holders: list[Holder]
