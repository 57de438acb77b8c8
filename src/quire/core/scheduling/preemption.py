"""Who gives way where blocks run short (PagedAttention, section 4.5).

After a recompute a tree of branches grows back: what was shared is computed once, and shared again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, NamedTuple

from quire.core.memory import KVAllocator
from quire.core.protocol.decision import Decision, PreemptionMode, RecoveryCosts, Verdict
from quire.core.protocol.step import Step
from quire.core.scheduling.invalidation import PhysicalBlock
from quire.core.scheduling.request_queue import RequestQueue
from quire.core.scheduling.sequence import SequenceGroup, Status
from quire.core.scheduling.sessions import Sessions


@dataclass(frozen=True)
class Recovery:
    """How those who gave way have their blocks again, and what that costs on this machine."""

    mode: PreemptionMode = PreemptionMode.RECOMPUTE
    costs: RecoveryCosts = RecoveryCosts()  # noqa: RUF009  # frozen


class Shortage(NamedTuple):
    """Why a group must wait, and the figures."""

    why: str
    needed: int  # blocks, as far as is known; or sequences
    free: int
    remedy: str = "a larger kv_cache_memory_bytes"
    unit: Literal["blocks", "pages", "sequences"] = "blocks"

    def decision(self, group: SequenceGroup) -> Decision:
        why, needed, free, remedy, unit = self
        name = group.request.request_id
        return Decision(Verdict.WAIT, name, why, needed, free, remedy=remedy, unit=unit)


class Preemption:
    """Takes the blocks of groups, by swap or by recompute.

    Sessions that are idle give way before those that run, the longest idle one first.
    """

    def __init__(
        self, allocator: KVAllocator, queue: RequestQueue, sessions: Sessions, recovery: Recovery
    ) -> None:
        self._allocator = allocator
        self._queue = queue
        self._sessions = sessions
        self._recovery = recovery

    def idle(self, besides: SequenceGroup) -> list[SequenceGroup]:
        """Who holds blocks but does not run, in the order in which they give way.

        Sessions between two turns, the longest idle first; then turns that wait with the blocks of
        their sessions, the last first.
        """
        if not self._sessions:
            return []
        waiting = [group for group in self._queue.residents() if group is not besides]
        return self._sessions.idle() + waiting

    def shortage(self, new_tokens: dict[int, int]) -> Shortage:
        """Of a group that cannot grow by ``new_tokens``, by sequence."""
        needed = self._allocator.blocks_to_append(new_tokens)
        free, unit = self._allocator.num_free_blocks, self._allocator.unit
        return Shortage("could not grow", needed, free, unit=unit)

    def preempt(
        self, victim: SequenceGroup, group: SequenceGroup, shortage: Shortage, step: Step
    ) -> None:
        """Take all blocks of ``victim``, because ``group`` needs blocks that are not free."""
        role = "idle" if victim.status is Status.RESIDENT else "the last in the queue"
        why = f"{role} while {group.request.request_id} {shortage.why}"
        mode, swap, recompute = self._recovery.mode, *self._prices(victim)
        moves = None
        if mode is PreemptionMode.SWAP or (mode is PreemptionMode.AUTO and swap < recompute):
            moves = self._allocator.swap_out(victim.tables())
            if moves is None:
                why += ", and the swap space is full"
        if moves is None:
            self.forget(victim)
            victim.memory.num_recomputes += 1
        else:
            victim.status = Status.SWAPPED
            victim.memory.num_swaps += 1
            victim.memory.swapped_blocks += len(moves)
            step.moves.extend(moves)
        victim.memory.hold(0, 0)
        decision = Decision(
            Verdict.RECOMPUTE if moves is None else Verdict.SWAP,
            victim.request.request_id,
            why,
            shortage.needed,
            shortage.free,
            swap if mode is PreemptionMode.AUTO else None,
            recompute if mode is PreemptionMode.AUTO else None,
            "a larger kv_cache_memory_bytes or a smaller max_num_seqs",
            shortage.unit,
        )
        step.decisions.append(decision)

    def _prices(self, victim: SequenceGroup) -> tuple[float, float]:
        """Seconds that it takes to swap the victim out and in, and to compute its tokens again."""
        costs = self._recovery.costs
        blocks, shared = self._allocator.blocks_held(victim.tables())
        # What branches share is computed once; blocks out of their windows are computed too.
        tokens = sum(branch.num_computed for branch in victim.branches)
        distinct = tokens * blocks / (blocks + shared) if shared else tokens
        swap = blocks * costs.swap_per_block
        if costs.swap_per_state:
            states = min(blocks, len(victim.tables()))
            swap += states * (costs.swap_per_state - costs.swap_per_block)
        return 2 * swap, distinct * costs.recompute_per_token

    def forget_invalid(
        self, groups: Iterable[SequenceGroup], lost: Set[PhysicalBlock]
    ) -> list[SequenceGroup]:
        """Those of the groups that hold a lost block, without any blocks now."""
        invalid = []
        for group in groups:
            if not lost.isdisjoint(self._held(group)):
                self.forget(group, invalid=True)
                invalid.append(group)
        return invalid

    def _held(self, group: SequenceGroup) -> Iterator[PhysicalBlock]:
        swapped = group.status is Status.SWAPPED
        for seq_id in group.tables():
            for kv_group, table in enumerate(self._allocator.table(seq_id).kv_groups):
                yield from (PhysicalBlock(swapped, kv_group, block) for block in table.block_ids)

    def forget(self, group: SequenceGroup, *, invalid: bool = False) -> None:
        """Free the group's blocks, wherever they are; it will compute its tokens again."""
        for seq_id in group.tables():
            group.memory.block_seconds += self._allocator.free(seq_id, invalid=invalid)
        group.status = Status.WAITING
        group.may_fetch = group.may_fetch and not invalid
        plan_regrowth(group)


def shared_length(a: Seq[int], b: Seq[int]) -> int:
    """How many tokens two sequences have in common from the start."""
    shortest = min(len(a), len(b))
    if a[:shortest] == b[:shortest]:
        return shortest
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def plan_regrowth(group: SequenceGroup) -> None:
    """Forget what is computed and note where each branch forks from an earlier one.

    The first branch recomputes its tokens; each other one waits, dormant, for the branch it
    shares most with to arrive where they part. So what was shared before is shared again.
    """
    for i, branch in enumerate(group.branches):
        branch.num_computed = 0
        branch.fork_from, branch.fork_at = None, 0
        for earlier in group.branches[:i]:
            # Each branch must compute a token of its own after the fork: its logits are needed.
            most = min(len(branch.token_ids), len(earlier.token_ids)) - 1
            shared = min(shared_length(branch.token_ids, earlier.token_ids), most)
            if shared > branch.fork_at:
                branch.fork_from, branch.fork_at = earlier, shared
