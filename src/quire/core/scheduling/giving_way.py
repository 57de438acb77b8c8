"""Who gives way where a group has not the blocks that it needs."""

from __future__ import annotations

from quire.core.memory import KVAllocator
from quire.core.protocol import Step
from quire.core.scheduling.admission import Shortage
from quire.core.scheduling.preemption import Preemption
from quire.core.scheduling.request_queue import RequestQueue
from quire.core.scheduling.sequence import SequenceGroup, Status
from quire.core.scheduling.sessions.sessions import Sessions


class GivingWay:
    """Sessions that are idle before those that run, the longest idle one first."""

    def __init__(
        self,
        allocator: KVAllocator,
        queue: RequestQueue,
        sessions: Sessions,
        preemption: Preemption,
    ) -> None:
        self._allocator = allocator
        self._queue = queue
        self._sessions = sessions
        self._preemption = preemption

    def idle(self, besides: SequenceGroup) -> list[SequenceGroup]:
        """Who holds blocks but does not run, in the order in which they give way.

        Sessions between two turns, the longest idle first; then turns that stand in line with the
        blocks of their sessions, the last first.
        """
        if not self._sessions:
            return []
        lined_up = [group for group in self._queue.residents() if group is not besides]
        return self._sessions.idle() + lined_up

    def preempt(
        self, victim: SequenceGroup, group: SequenceGroup, shortage: Shortage, step: Step
    ) -> None:
        role = "idle" if victim.status is Status.RESIDENT else "the last in line"
        why = f"{role} while {group.request.request_id} {shortage.why}"
        decision, swaps = self._preemption.preempt(victim, why, shortage.needed, shortage.free)
        step.decisions.append(decision)
        step.moves.extend(swaps)

    def shortage(self, new_tokens: dict[int, int]) -> Shortage:
        """Of a group that cannot grow by so many tokens, by sequence."""
        needed = self._allocator.blocks_to_append(new_tokens)
        return Shortage("could not grow", needed, self._allocator.num_free_blocks)
