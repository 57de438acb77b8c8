"""How many different adapters run at once, and who waits for a slot.

Groups that run with the same adapter share a *slot*, of which there are a few. A group has its
adapter's from when it is first let in to its end, preempted or not; so a group that has begun never
waits for a slot.

A newcomer whose adapter has none is passed by those behind it who need none, or whose adapter has
one. So that it is not passed for ever, a slot is promised to it, the one that was given out longest
ago: nobody new joins the adapter that has it, so it is free once those have ended that have begun.
The second adapter that waits is promised the second oldest, and so on; a group that is kept back
by a promise waits in the same queue for the next slot.
"""

from __future__ import annotations

from collections.abc import Container

from quire.core.protocol.decision import Decision, Verdict
from quire.core.protocol.request import Adapter


class AdapterSlots:
    """At most ``most`` adapters at once; None: as many as there are requests.

    ready: those whose weights are in memory; None: all are.
    wanted: those that newcomers waited for in the last step, in order of rank. As many of
        them as there are free slots will begin as soon as they are ready.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.ready: Container[Adapter] | None = None
        self.wanted: list[Adapter] = []
        self._users: dict[Adapter, int] = {}  # groups that have begun; the longest used first

    @property
    def in_use(self) -> list[Adapter]:
        """That have a slot, the one that was given out longest ago first."""
        return list(self._users)

    def take(self, adapter: Adapter) -> None:
        """A group begins."""
        self._users[adapter] = self._users.get(adapter, 0) + 1

    def release(self, adapter: Adapter) -> None:
        """A group that had begun has ended."""
        self._users[adapter] -= 1
        if not self._users[adapter]:
            del self._users[adapter]


class SlotsOfAStep:
    """Who may begin in one step: newcomers are looked at in their order, until one must wait.

    closed: adapters that no more newcomers begin with in this step.
    """

    def __init__(self, slots: AdapterSlots) -> None:
        self.closed: set[Adapter] = set()
        self._slots = slots
        self._num_kept = 0  # free ones, for those who will be here soon
        self._num_promised = 0  # slots in use, to those who wait

    def passes(self, request_id: str, adapter: Adapter, decisions: list[Decision]) -> bool:
        """Whether a newcomer must wait for its adapter, and so those behind it may pass."""
        why = self._why_not(adapter)
        if why is not None:
            remedy = "a larger max_loras"
            decisions.append(Decision(Verdict.WAIT, request_id, why, remedy=remedy))
        return why is not None

    def _why_not(self, adapter: Adapter) -> str | None:
        """Why a newcomer must wait for its adapter, which is closed then; None: it may begin."""
        slots, in_use = self._slots, self._slots.in_use
        if adapter in in_use:
            return None
        if slots.most is not None and len(in_use) + self._num_kept >= slots.most:
            why = f"waits for a slot: {len(in_use)} of {slots.most} in use"
            self.closed.update(in_use[self._num_promised :][:1])
            self._num_promised += 1
        elif slots.ready is not None and adapter not in slots.ready:
            why = "is being read"
            self._num_kept += 1
        else:
            return None
        self.closed.add(adapter)
        slots.wanted.append(adapter)
        return f"adapter {adapter.name} {why}"
