"""One block: the sequences that hold it, and which of their tokens are in it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal, NamedTuple

from quire.core.scheduling import Scheduler
from quire.core.scheduling.sequence import SequenceGroup, Status
from quire.engine.dashboard.holders import branch_at, holding_groups, number_of
from quire.engine.dashboard.tracker import first_blocks


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
    """kv_group: whose pool the block is in."""

    kv_group: int
    holders: list[Holder]


def holding(scheduler: Scheduler, block: int) -> Holding | None:
    """None: there is no block of that number."""
    *firsts, total = first_blocks(scheduler.allocator.views())
    if not 0 <= block < total:
        return None
    kv_group = bisect_right(firsts, block) - 1
    own, found = block - firsts[kv_group], list[Holder]()
    for group in holding_groups(scheduler):
        for which, branch in enumerate(group.branches):
            if branch.fork_from is None:
                table = scheduler.allocator.table(branch.seq_id).kv_groups[kv_group]
                if own in table.block_ids:
                    index = table.block_ids.index(own)
                    place = index + (index >= table.num_sink_blocks) * table.num_dropped
                    found.append(_holder(scheduler, group, which, place))
    return Holding(kv_group, found)


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
