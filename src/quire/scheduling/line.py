"""The line in which groups stand: who is served before whom."""

from __future__ import annotations

from bisect import insort
from enum import Enum

from quire.errors import RequestError
from quire.scheduling.request import Request
from quire.scheduling.sequence import SequenceGroup, Status

PRIORITY_SECONDS = 10.0
"""Under the priority policy, one level of priority is worth this much waiting. Whoever waits moves
up in line relative to newcomers, so nobody starves."""


class SchedulingPolicy(str, Enum):
    FCFS = "fcfs"
    PRIORITY = "priority"


class Line:
    """Groups by arrival, or by priority and arrival: those that run, and those that wait.

    A group keeps its place for as long as it lives, so whoever gives way is let in again before
    anyone behind it.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.policy = policy
        self.running: list[SequenceGroup] = []
        self.waiting: list[SequenceGroup] = []

    @property
    def num_running_seqs(self) -> int:
        return sum(group.width for group in self.running)

    def rank(self, request: Request) -> float:
        """Where the request stands; among equals, who came first is first.

        RequestError: it has a priority, and the policy looks at none.
        """
        if self.policy is SchedulingPolicy.FCFS:
            if request.priority:
                raise RequestError('priority needs scheduling_policy "priority"', "priority")
            return 0.0
        return request.arrival + PRIORITY_SECONDS * request.priority

    def queue(self, group: SequenceGroup) -> SequenceGroup:
        """Let the group wait at its place."""
        insort(self.waiting, group, key=_place)
        return group

    def let_in(self) -> None:
        """The first that waits runs from now on."""
        insort(self.running, self.waiting.pop(0), key=_place)

    def send_back(self) -> SequenceGroup:
        """The last that runs waits from now on."""
        return self.queue(self.running.pop())

    def suspend(self, group: SequenceGroup) -> None:
        """The group does not run, whether it did or not."""
        if group in self.running:
            self.running.remove(group)
            self.queue(group)

    def leave(self, group: SequenceGroup) -> None:
        """The group has ended."""
        for groups in (self.running, self.waiting):
            if group in groups:
                groups.remove(group)

    def leave_ended(self) -> None:
        """All that ran and have ended."""
        self.running = [group for group in self.running if group.branches]

    def residents(self) -> list[SequenceGroup]:
        """Turns that wait with the blocks of their sessions, the last first."""
        return [group for group in reversed(self.waiting) if group.status is Status.RESIDENT]


def _place(group: SequenceGroup) -> tuple[float, int]:
    return group.rank
