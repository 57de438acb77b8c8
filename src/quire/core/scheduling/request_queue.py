"""The queue of groups: who is served before whom."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from quire.core.errors import RequestError
from quire.core.protocol.decision import SchedulingPolicy
from quire.core.protocol.request import Adapter, Request
from quire.core.scheduling.sequence import SequenceGroup, Status, by_rank, discard

PRIORITY_SECONDS = 10.0
"""Under the priority policy, one level of priority is worth this much waiting. A group that waits
moves up relative to newcomers, so none starves."""


class Newcomers(Protocol):
    """Who has never been let in, in an order of theirs."""

    def add(self, group: SequenceGroup) -> None: ...

    def first(self) -> SequenceGroup | None: ...

    def first_beside(self, adapters: Collection[Adapter]) -> SequenceGroup | None:
        """The first that asks for none of these."""
        ...

    def let_in(self, group: SequenceGroup) -> None:
        """The first of them has its blocks, and runs from now on."""
        ...

    def remove(self, group: SequenceGroup) -> None: ...


class Accounts(Newcomers, Protocol):
    """Newcomers in an order that changes with what their clients are served."""

    @property
    def num_clients(self) -> int:
        """Clients of whom requests wait."""
        ...

    def order(self) -> Seq[SequenceGroup]:
        """All, as they are let in if nobody comes, and nothing but their prompts is charged."""
        ...

    def serve(self, tokens: Iterable[tuple[Request, float]]) -> None:
        """Tokens were computed for requests beside their prompts."""
        ...

    def refund(self, group: SequenceGroup) -> None:
        """A group that was let in ends early: what is left of its prompt is not computed."""
        ...

    def ended(self, request: Request) -> None:
        """A request that was let in has ended by itself."""
        ...


@dataclass(frozen=True)
class Queueing:
    """Who is let in first, and who has waited for too long.

    max_queue_time: seconds after which a request that has never been let in ends by itself; its
        Decision says so. None: never.
    accounts: makes those of the fair policy; None: newcomers are in order of their ranks.
    """

    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    max_queue_time: float | None = None
    accounts: Callable[[], Accounts] | None = None

    def __post_init__(self) -> None:
        if (self.policy is SchedulingPolicy.FAIR) != (self.accounts is not None):
            raise ValueError("accounts are of the fair policy, which has some")


class RequestQueue:
    """Groups in order of their ranks: those that run, and those that wait.

    From when it is let in a group keeps its rank for as long as it lives, so one that gives way is
    let in again before those behind it. Newcomers have theirs from when they come, or, under the
    fair policy, are behind all others until they are let in.

    accounts: of what clients have been served; None: clients do not share.
    """

    def __init__(self, queueing: Queueing) -> None:
        self.policy = queueing.policy
        self.running: list[SequenceGroup] = []
        self.accounts = None if queueing.accounts is None else queueing.accounts()
        self.newcomers: Newcomers = self.accounts or ByRank()
        self.num_new_tokens = 0  # of the newcomers' prompts
        self.num_left = 0  # newcomers that have been let in, or have ended before
        self.sitting: frozenset[str] = frozenset()  # requests that are not let in again yet
        self._wide: dict[SequenceGroup, None] = {}  # that run, and may be of many branches
        self._back: list[SequenceGroup] = []  # they wait, but have been let in before
        self._arrivals: list[SequenceGroup] = []  # the newcomers, in order of arrival

    @property
    def waiting(self) -> Seq[SequenceGroup]:
        """In order of rank; under the fair policy as if all newcomers were of one client."""
        return sorted([*self._back, *self._arrivals], key=by_rank)

    def order(self) -> Seq[SequenceGroup]:
        """Those who wait, in the order in which they are let in if all goes on as it is."""
        return self.waiting if self.accounts is None else [*self._back, *self.accounts.order()]

    @property
    def num_waiting(self) -> int:
        return len(self._back) + len(self._arrivals)

    @property
    def num_new(self) -> int:
        return len(self._arrivals)

    @property
    def num_running_seqs(self) -> int:
        return len(self.running) + sum(group.width - 1 for group in self._wide)

    def rank(self, request: Request) -> float:
        """The request's rank; among equals, the one that came first is first.

        RequestError: it has a priority, and the policy looks at none.
        """
        if self.policy is SchedulingPolicy.FCFS:
            if request.priority:
                raise RequestError(
                    'priority needs scheduling_policy "priority" or "fair"', "priority"
                )
            return 0.0
        return request.arrival + PRIORITY_SECONDS * request.priority

    def enqueue(self, group: SequenceGroup) -> SequenceGroup:
        """Let the group wait, by its rank."""
        if group.begun:
            insort(self._back, group, key=by_rank)
        else:
            insort(self._arrivals, group, key=_arrival)
            self.num_new_tokens += len(group.request.prompt_token_ids)
            self.newcomers.add(group)
        return group

    def first(self, closed: Collection[Adapter] = ()) -> SequenceGroup | None:
        """Of those that wait; but for newcomers who ask for an adapter that is ``closed``."""
        newcomers = self.newcomers
        new = newcomers.first_beside(closed) if closed else newcomers.first()
        back = self._back[0] if self._back else None
        if back is not None and self.sitting:
            ready = (one for one in self._back if one.request.request_id not in self.sitting)
            back = next(ready, None)
        if back is None or (new is not None and new.rank < back.rank):
            return new
        return back

    def let_in(self, group: SequenceGroup) -> None:
        """The first that waits runs from now on. It has its blocks."""
        if group.begun:
            discard(self._back, group, by_rank)
        else:
            self._leave_newcomers(group)
            self.newcomers.let_in(group)
            group.begun = True
        insort(self.running, group, key=by_rank)
        if group.request.params.width > 1:
            self._wide[group] = None

    def send_back(self) -> SequenceGroup:
        """The last that runs waits from now on."""
        group = self.running.pop()
        self._wide.pop(group, None)
        return self.enqueue(group)

    def suspend(self, group: SequenceGroup) -> None:
        """The group does not run, whether it did or not."""
        if self._stop(group):
            self.enqueue(group)

    def leave(self, group: SequenceGroup) -> None:
        """The group is about to end."""
        if not group.begun:
            self._leave_newcomers(group)
            self.newcomers.remove(group)
            return
        was_here = self._stop(group) or discard(self._back, group, by_rank)
        if was_here and self.accounts is not None:
            self.accounts.refund(group)

    def leave_ended(self) -> None:
        """All that ran and have ended."""
        if self.accounts is not None:
            for group in self.running:
                if not group.branches:
                    self.accounts.ended(group.request)
        self._wide = {group: None for group in self._wide if group.branches}
        self.running = [group for group in self.running if group.branches]

    def overdue(self, arrival: float) -> list[SequenceGroup]:
        """The newcomers that came before that."""
        end = bisect_left(self._arrivals, arrival, key=lambda group: group.request.arrival)
        return self._arrivals[:end]

    def residents(self) -> list[SequenceGroup]:
        """Turns that wait with the blocks of their sessions, the last first."""
        return [group for group in reversed(self.waiting) if group.status is Status.RESIDENT]

    def _stop(self, group: SequenceGroup) -> bool:
        """The group runs no more; False if it did not."""
        self._wide.pop(group, None)
        return discard(self.running, group, by_rank)

    def _leave_newcomers(self, group: SequenceGroup) -> None:
        discard(self._arrivals, group, _arrival)
        self.num_new_tokens -= len(group.request.prompt_token_ids)
        self.num_left += 1


class ByRank:
    """Newcomers by the ranks that they have from when they come."""

    def __init__(self) -> None:
        self._groups: list[SequenceGroup] = []

    def add(self, group: SequenceGroup) -> None:
        insort(self._groups, group, key=by_rank)

    def first(self) -> SequenceGroup | None:
        return self._groups[0] if self._groups else None

    def first_beside(self, adapters: Collection[Adapter]) -> SequenceGroup | None:
        return next((one for one in self._groups if one.request.adapter not in adapters), None)

    def let_in(self, group: SequenceGroup) -> None:
        self.remove(group)

    def remove(self, group: SequenceGroup) -> None:
        discard(self._groups, group, by_rank)


def _arrival(group: SequenceGroup) -> tuple[float, float]:
    return group.request.arrival, group.rank[1]
