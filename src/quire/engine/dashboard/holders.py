"""Who holds blocks of the device: requests, and sessions between their turns."""

from __future__ import annotations

from collections.abc import Iterator

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
    """Who has block tables on the device."""
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
