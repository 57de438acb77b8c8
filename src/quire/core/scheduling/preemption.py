"""Taking a group's blocks away and giving them back (PagedAttention, section 4.5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from quire.core.memory import BlockMove, KVAllocator
from quire.core.protocol.decision import Decision, Verdict
from quire.core.protocol.policy import PreemptionMode, RecoveryCosts
from quire.core.scheduling.branching import plan_regrowth
from quire.core.scheduling.invalidation import Place
from quire.core.scheduling.sequence import SequenceGroup, Status


class Preemption:
    """Preempts groups by swap or by recompute, and brings the swapped ones back."""

    def __init__(
        self,
        allocator: KVAllocator,
        mode: PreemptionMode = PreemptionMode.RECOMPUTE,
        costs: RecoveryCosts | None = None,
    ) -> None:
        self._allocator = allocator
        self._mode = mode
        self._costs = costs or RecoveryCosts()

    def preempt(
        self, victim: SequenceGroup, why: str, needed: int, free: int
    ) -> tuple[Decision, list[BlockMove]]:
        """Take all blocks of ``victim``, because others need blocks that are not free."""
        allocator = self._allocator
        blocks, shared = allocator.blocks_held(victim.tables())
        swap = 2 * blocks * self._costs.swap_per_block
        # What branches share is computed once; blocks out of their windows are computed too.
        tokens = sum(branch.num_computed for branch in victim.branches)
        distinct = tokens * blocks / (blocks + shared) if shared else tokens
        recompute = distinct * self._costs.recompute_per_token
        moves = None
        if self._mode is PreemptionMode.SWAP or (
            self._mode is PreemptionMode.AUTO and swap < recompute
        ):
            moves = allocator.swap_out(victim.tables())
            if moves is None:
                why += ", and the swap space is full"
        if moves is None:
            self.forget(victim)
            victim.memory.num_recomputes += 1
        else:
            victim.status = Status.SWAPPED
            victim.memory.num_swaps += 1
            victim.memory.swapped_blocks += len(moves)
        victim.memory.hold(0, 0)
        decision = Decision(
            Verdict.RECOMPUTE if moves is None else Verdict.SWAP,
            victim.request.request_id,
            why,
            needed,
            free,
            swap if self._mode is PreemptionMode.AUTO else None,
            recompute if self._mode is PreemptionMode.AUTO else None,
            "a larger kv_cache_memory_bytes or a smaller max_num_seqs",
        )
        return decision, moves or []

    def restore(self, group: SequenceGroup, headroom: int) -> list[BlockMove] | None:
        """The moves that bring a swapped group back; None if there is no room yet."""
        moves = self._allocator.swap_in(group.tables(), headroom)
        if moves is not None:
            group.status = Status.RUNNING
            group.memory.swapped_blocks += len(moves)
        return moves

    def forget_invalid(
        self, groups: Iterable[SequenceGroup], lost: Set[Place]
    ) -> list[SequenceGroup]:
        """Those of the groups that hold a lost block, without any blocks now."""
        invalid = []
        for group in groups:
            if not lost.isdisjoint(self._held(group)):
                self.forget(group, invalid=True)
                invalid.append(group)
        return invalid

    def _held(self, group: SequenceGroup) -> Iterator[Place]:
        swapped = group.status is Status.SWAPPED
        for seq_id in group.tables():
            for kv_group, table in enumerate(self._allocator.table(seq_id).kv_groups):
                yield from (Place(swapped, kv_group, block) for block in table.block_ids)

    def forget(self, group: SequenceGroup, *, invalid: bool = False) -> None:
        """Free the group's blocks, wherever they are; it will compute its tokens again."""
        for seq_id in group.tables():
            group.memory.block_seconds += self._allocator.free(seq_id, invalid=invalid)
        group.status = Status.WAITING
        group.may_fetch = group.may_fetch and not invalid
        plan_regrowth(group)
