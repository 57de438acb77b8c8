"""Requests as an operator asks for them: where they stand, what they hold, why they wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from quire.capabilities.misses import miss_of
from quire.core.protocol import Decision
from quire.core.scheduling import Scheduler, SequenceGroup
from quire.core.scheduling.sequence import Sequence, Status
from quire.engine.dashboard.holders import branch_at, first_blocks, number_of
from quire.engine.dashboard.misses import MissRow, miss_row
from quire.engine.dashboard.remedies import (
    Need,
    PoolBytes,
    blocks_of,
    free_blocks,
    needs,
    remedy_of,
)

Unit = Literal["blocks", "pages", "sequences"]
_BLOCKS: Unit = "blocks"
_FREE: Mapping[Unit, str] = {
    "blocks": "cached or free",
    "pages": "that nobody holds a block of",
    "sequences": "free",
}

Standing = Literal["running", "waiting", "preempted"]


class Pace(NamedTuple):
    """How fast steps have been of late."""

    step_seconds: float
    tokens: float  # that a running sequence has gained in each


class Reasons(NamedTuple):
    """What is known of waiting beside the line itself.

    latest: by request, what the latest step has decided about those that wait.
    wait_of: seconds until a number of newcomers has been let in.
    preempted: when that was, by request, as far as it is known.
    pool: its size; None: not known in bytes.
    """

    latest: Mapping[str, Decision]
    wait_of: Callable[[int], float]
    pace: Pace | None = None
    preempted: Mapping[str, float] = MappingProxyType({})
    pool: PoolBytes | None = None


@dataclass(frozen=True)
class Wait:
    """Why a request waits.

    text: all of it in words. ahead: requests before it in line. needed: at most, for those that
    the latest step did not look at. free: now, cached blocks too. remedy: settings, with values
    that would be enough for it to begin now. predicted_seconds: until it is let in, by how fast
    others were; null for who has been in before.
    """

    text: str
    why: str
    ahead: int
    needed: int | None
    free: int | None
    unit: Unit
    remedy: str | None
    predicted_seconds: float | None


@dataclass(frozen=True)
class Row:
    """A request that has not ended.

    http_request_id: the x-request-id by which its client knows it, if it came over HTTP.
    number: as blocks have it for their owner. seconds: since it came. computed_tokens: of its
    longest branch. blocks: held now on the device. swaps, recomputes: times that it was preempted.
    waiting_seconds: since it came, or was preempted; null for one that runs, or has waited for so
    long that nobody knows. ends_within_seconds: if it becomes as long as it may, by the steps of
    late. grammar_seconds, beside_seconds: see ``RequestMetrics``. miss: why no more of its prompt
    was found in the prefix cache. expected_first_token, expected_end: seconds after it came, as was
    expected then; null where nobody could tell.
    """

    id: str
    http_request_id: str
    number: int
    status: Standing
    seconds: float
    prompt_tokens: int
    computed_tokens: int
    output_tokens: int
    max_tokens: int
    branches: int
    blocks: int
    peak_blocks: int
    shared_blocks: int
    copied_blocks: int
    block_seconds: float
    cached_tokens: int
    fetched_tokens: int
    swaps: int
    recomputes: int
    on_host: bool
    adapter: str | None
    priority: int
    wait: Wait | None
    waiting_seconds: float | None
    ends_within_seconds: float | None
    draft_tokens: int = 0
    accepted_tokens: int = 0
    grammar_seconds: float = 0.0
    beside_seconds: float = 0.0
    miss: MissRow | None = None
    expected_first_token: float | None = None
    expected_end: float | None = None


@dataclass(frozen=True)
class Rows:
    """The first ``limit`` requests of each kind, in order, and how many there are."""

    num_running: int
    num_waiting: int
    num_preempted: int
    running: list[Row]
    waiting: list[Row]
    preempted: list[Row]


@dataclass(frozen=True)
class GroupTable:
    """Where a branch's tokens are in one KV group.

    blocks: their numbers among all. holders: sequences of any request that hold each; none are
    known on the host. dropped: blocks after the sinks' that its window has left.
    """

    blocks: list[int]
    holders: list[int]
    sink_blocks: int
    dropped: int


@dataclass(frozen=True)
class BranchTable:
    """The block tables of a branch. on_host: blocks are numbers of the host's pool."""

    branch: int
    tokens: int
    computed_tokens: int
    on_host: bool
    kv_groups: list[GroupTable]


def rows(scheduler: Scheduler, now: float, reasons: Reasons, limit: int) -> Rows:
    """All requests, but with details of no more than ``limit``."""
    running = [_row(scheduler, group, now, reasons, None) for group in scheduler.running[:limit]]
    new: list[Row] = []
    back: list[Row] = []
    num_back = sum(group.begun for group in scheduler.waiting)
    num_new = len(scheduler.waiting) - num_back
    for group, position in _queued(scheduler):
        if len(new) >= min(limit, num_new) and len(back) >= min(limit, num_back):
            break
        found = back if group.begun else new
        if len(found) < limit:
            wait = _wait(scheduler, group, position, reasons)
            found.append(_row(scheduler, group, now, reasons, wait))
    return Rows(len(scheduler.running), num_new, num_back, running, new, back)


def one_row(scheduler: Scheduler, group: SequenceGroup, now: float, reasons: Reasons) -> Row:
    """The row of one request."""
    position = next((position for one, position in _queued(scheduler) if one is group), None)
    wait = None if position is None else _wait(scheduler, group, position, reasons)
    return _row(scheduler, group, now, reasons, wait)


def block_tables(scheduler: Scheduler, group: SequenceGroup) -> list[BranchTable]:
    """The block tables of each live branch that has some."""
    pools = scheduler.allocator.views()
    firsts = first_blocks(pools)
    on_host = group.status is Status.SWAPPED
    having = set(group.tables())
    tables = []
    for place, branch in enumerate(group.branches):
        found: list[GroupTable] = []
        if branch.seq_id in having:
            kv_groups = scheduler.allocator.table(branch.seq_id).kv_groups
            for first, pool, table in zip(firsts, pools, kv_groups, strict=False):
                first = 0 if on_host else first
                ids = [first + block for block in table.block_ids]
                holders = [] if on_host else [*map(pool.num_holders, table.block_ids)]
                found.append(GroupTable(ids, holders, table.num_sink_blocks, table.num_dropped))
        length, computed = len(branch.token_ids), branch.num_computed
        number = branch_at(group, place)
        tables.append(BranchTable(number, length, computed, on_host, found))
    return tables


def _row(
    scheduler: Scheduler, group: SequenceGroup, now: float, reasons: Reasons, wait: Wait | None
) -> Row:
    request, memory, branches = group.request, group.memory, group.branches
    miss = miss_of(memory)
    tables = [] if group.status is Status.SWAPPED else group.tables()
    charge = sum(scheduler.allocator.charge(seq_id) for seq_id in tables)
    status: Standing = "running"
    if wait is not None:
        status = "preempted" if group.begun else "waiting"
    return Row(
        id=request.request_id,
        http_request_id=request.origin.request_id,
        number=number_of(group),
        status=status,
        seconds=max(0.0, now - request.arrival),
        prompt_tokens=branches[0].num_prompt_tokens,
        computed_tokens=max(branch.num_computed for branch in branches),
        output_tokens=sum(branch.num_output_tokens for branch in branches),
        max_tokens=request.max_tokens,
        branches=len(branches),
        blocks=memory.blocks,
        peak_blocks=memory.peak_blocks,
        shared_blocks=memory.shared_blocks,
        copied_blocks=memory.copied_blocks,
        block_seconds=memory.block_seconds + charge,
        cached_tokens=memory.cached_tokens,
        fetched_tokens=memory.fetched_tokens,
        swaps=memory.num_swaps,
        recomputes=memory.num_recomputes,
        on_host=group.status is Status.SWAPPED,
        adapter=None if request.adapter is None else request.adapter.name,
        priority=request.priority,
        wait=wait,
        waiting_seconds=None if wait is None else _since(group, now, reasons),
        ends_within_seconds=_ends_within(scheduler, group, reasons.pace, wait),
        miss=None if miss is None else miss_row(miss, scheduler, reasons.pool),
    )


def _since(group: SequenceGroup, now: float, reasons: Reasons) -> float | None:
    since: float | None = group.request.arrival
    if group.begun:
        since = reasons.preempted.get(group.request.request_id)
    return None if since is None else max(0.0, now - since)


class _Position(NamedTuple):
    """In the queue. newcomers: let in by when it is, itself included; None: it has been in."""

    ahead: int
    newcomers: int | None
    need: Need


def _queued(scheduler: Scheduler) -> Iterator[tuple[SequenceGroup, _Position]]:
    newcomers = 0
    for ahead, (group, need) in enumerate(zip(scheduler.waiting, needs(scheduler), strict=True)):
        newcomers += not group.begun
        yield group, _Position(ahead, None if group.begun else newcomers, need)


def _wait(scheduler: Scheduler, group: SequenceGroup, at: _Position, reasons: Reasons) -> Wait:
    decision, need = reasons.latest.get(group.request.request_id), at.need
    why, unit = _undecided(scheduler, at), _BLOCKS
    needed: int | None = blocks_of(group, scheduler.allocator.block_size)
    if decision is not None:
        why, unit, needed = decision.why, decision.unit, decision.needed
        if needed is not None and unit == "blocks":  # fewer, where others have ended since
            needed = min(needed, need.blocks)
            need = need._replace(blocks=needed)
    free = free_blocks(scheduler)
    if unit == "pages":
        free = scheduler.allocator.num_free_blocks
    elif unit == "sequences":
        free = scheduler.batch.max_num_seqs - scheduler.num_running_seqs
    free, text = None if needed is None else free, why
    if needed is not None and free is not None:
        text += "; needs up to " if decision is None else ": needs "
        text += f"{_counted(needed, unit)}, {free:,} {_FREE[unit]}"
    predicted = None if at.newcomers is None else reasons.wait_of(at.newcomers)
    remedy = remedy_of(scheduler, group, need, reasons.pool)
    return Wait(text, why, at.ahead, needed, free, unit, remedy, predicted)


def _undecided(scheduler: Scheduler, at: _Position) -> str:
    """Why the latest step has not looked at it."""
    if at.ahead:
        return f"behind {at.ahead:,} other{'s' if at.ahead > 1 else ''}"
    if at.need.tokens > scheduler.batch.max_num_batched_tokens:
        return "once a step has tokens left for it"
    return "the next step looks at it"  # the latest one has preempted, and so admitted nobody


def _counted(number: int, unit: str) -> str:
    return f"{number:,} {unit[:-1] if number == 1 else unit}"


def _ends_within(
    scheduler: Scheduler, group: SequenceGroup, pace: Pace | None, wait: Wait | None
) -> float | None:
    if pace is None or not pace.tokens:
        return None
    branches: Seq[Sequence] = group.branches
    pending = sum(branch.num_pending for branch in branches) - len(branches)
    left = max(group.request.max_tokens - branch.num_output_tokens for branch in branches)
    steps = max(0, pending) / scheduler.batch.max_num_batched_tokens + left / pace.tokens
    before = 0.0 if wait is None else wait.predicted_seconds
    return None if before is None else before + steps * pace.step_seconds
