"""Who holds blocks of the device: requests, and sessions between their turns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from quire.core.memory import PoolView
from quire.core.scheduling import Scheduler, SequenceGroup
from quire.core.scheduling.sequence import Sequence, Status


def number_of(group: SequenceGroup) -> int:
    """By which a request is known as an owner of blocks; a session's turns have the session's.

    Numbers are given in the order in which requests come, from 0; as owners they count from 1.
    """
    trunk: int = group.rank[1] if group.request.params.width > 1 else group.branches[0].seq_id
    return trunk + 1


def branch_at(group: SequenceGroup, place: int) -> int:
    """Which of its outputs this branch is; beams, of which many have one's beginning, by place."""
    return place if group.beams is not None else group.branches[place].index


def holding_groups(scheduler: Scheduler) -> Iterator[SequenceGroup]:
    """The sequence groups that have block tables on the device."""
    groups = [*scheduler.running]
    if scheduler.sessions:
        groups += [*scheduler.queue.residents(), *scheduler.sessions.idle()]
    for group in groups:
        if group.status in (Status.RUNNING, Status.RESIDENT):
            yield group


def holders(scheduler: Scheduler) -> Iterator[tuple[int, Sequence]]:
    """The sequences that have a block table on the device, and the number of whose they are."""
    for group in holding_groups(scheduler):
        number = number_of(group)
        for branch in group.branches:
            if branch.fork_from is None:
                yield number, branch


def first_blocks(pools: tuple[PoolView, ...]) -> list[int]:
    """The number of each KV group's first block among all; and how many there are.

    KV groups that share pages have the same first one: there, units are counted.
    """
    if pools and pools[0].share is not None:
        return [0] * len(pools) + [pools[0].share.num_units]
    firsts = [0]
    for pool in pools:
        firsts.append(firsts[-1] + pool.num_blocks)
    return firsts


def span_of(pool: PoolView) -> int:
    """How many numbers a block takes."""
    return 1 if pool.share is None else pool.share.span


@dataclass(frozen=True)
class Holder:
    """A sequence with this block in its table.

    id: the request's, or that of a session between two turns. The block is for the tokens from
    ``first_token`` to before ``end_token``, as far as the sequence goes by now.
    """

    id: str
    number: int
    kind: Literal["request", "session"]
    running: bool
    branch: int
    branches: int
    adapter: str | None
    first_token: int
    end_token: int
    tokens: int


class Holding(NamedTuple):
    """Who holds a block. kv_group: whose pool it is in."""

    kv_group: int
    holders: list[Holder]


def holding(scheduler: Scheduler, block: int) -> Holding | None:
    """Who holds a block; None: there is no block of that number."""
    pools = scheduler.allocator.views()
    *firsts, total = first_blocks(pools)
    if not 0 <= block < total:
        return None
    last = bisect_right(firsts, block) - 1
    for kv_group in range(firsts.index(firsts[last]), last + 1):
        found = _holders(scheduler, kv_group, block - firsts[last], span_of(pools[kv_group]))
        if found or kv_group == last:
            break
    return Holding(kv_group, found)


def _holders(scheduler: Scheduler, kv_group: int, own: int, span: int) -> list[Holder]:
    """Who holds a block, or one that takes ``span`` numbers, of which this is one."""
    found = list[Holder]()
    for group in holding_groups(scheduler):
        for which, branch in enumerate(group.branches):
            if branch.fork_from is None:
                table = scheduler.allocator.table(branch.seq_id).kv_groups[kv_group]
                ids = enumerate(table.block_ids)
                index = next((i for i, block in ids if block <= own < block + span), None)
                if index is not None:
                    place = index + (index >= table.num_sink_blocks) * table.num_dropped
                    one = _holder(scheduler, group, which, place)
                    found.append(replace(one, end_token=one.tokens) if table.keeps_state else one)
    return found


def _holder(scheduler: Scheduler, group: SequenceGroup, which: int, place: int) -> Holder:
    """The branch that is at ``which``, with the block at ``place`` of its table."""
    request, branch = group.request, group.branches[which]
    size = scheduler.allocator.block_size
    first, tokens = place * size, scheduler.allocator.num_tokens(branch.seq_id)
    return Holder(
        id=request.request_id,
        number=number_of(group),
        kind="session" if group in scheduler.sessions.resting() else "request",
        running=group.status is Status.RUNNING,
        branch=branch_at(group, which),
        branches=len(group.branches),
        adapter=None if request.adapter is None else request.adapter.name,
        first_token=first,
        end_token=max(first, min(first + size, tokens)),
        tokens=tokens,
    )
