"""What running groups compute next, while the step before is under way and its samples unknown.

A sequence is taken to go on unless its length is known to end it. If it turns out to have stopped,
what the next step computes of it is dropped by ``Scheduler.update``, as it is for an aborted
request. Its blocks are free before that step is done; but steps take effect in their order
(``PipelinedExecutor``), so their next owner is not disturbed.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from quire.core.memory import BlockMove, KVAllocator, MoveKind
from quire.core.protocol.step import Step
from quire.core.scheduling.chunking import Chunker
from quire.core.scheduling.sequence import Sequence, SequenceGroup
from quire.core.scheduling.sharing import rows_to_decode


class _Growth(NamedTuple):
    """More tokens of a branch, from ``start`` on."""

    group: SequenceGroup
    branch: Sequence
    start: int
    tokens: int

    @property
    def unknown(self) -> bool:
        """Whether it is the token that the step under way samples."""
        return self.start == len(self.branch.token_ids)


class Lookahead:
    """Plans growth after a step under way."""

    def __init__(self, allocator: KVAllocator, chunker: Chunker) -> None:
        self._allocator = allocator
        self._chunker = chunker

    def grow(
        self, running: Seq[SequenceGroup], under_way: Step, budget: int
    ) -> tuple[Step, int] | None:
        """The next step of these groups, and what is left of the budget of tokens.

        None, and nothing has changed: it depends on what the step under way gives. That is so for
        beams, forks and drafts; where a group would have to give way to others, which those that
        stop may spare it; where one that decodes would come too short behind a prefill; and after
        moves to or from the host, which may fail.
        """
        if any(move.kind is not MoveKind.COPY for move in under_way.moves):
            return None
        growth = _foresee(running, under_way, budget)
        if growth is None:
            return None
        moves = self._allocator.append({g.branch.seq_id: g.tokens for g in growth})
        if moves is None:
            return None
        step = Step(moves, ahead=True)
        for one in growth:
            self._add(one, step)
        for group in dict.fromkeys(one.group for one in growth):
            group.memory.copied_blocks += self._copies_for(group, moves)
            group.memory.hold(*self._allocator.blocks_held(group.tables()))
        return step, budget - sum(one.tokens for one in growth)

    def _add(self, growth: _Growth, step: Step) -> None:
        group, branch, start, tokens = growth
        if growth.unknown:
            step.chunks.append(self._chunker.next_unknown(branch))
        else:
            self._chunker.add_chunk(group, branch, start, tokens, step)

    def _copies_for(self, group: SequenceGroup, moves: Seq[BlockMove]) -> int:
        """How many of the moves copy a block for this group."""
        if not moves:
            return 0
        tables = [self._allocator.table(seq_id).kv_groups for seq_id in group.tables()]
        held = {
            (i, b)
            for kv_groups in tables
            for i, table in enumerate(kv_groups)
            for b in table.block_ids
        }
        return sum((move.kv_group, move.target) in held for move in moves)


def _foresee(running: Seq[SequenceGroup], under_way: Step, budget: int) -> list[_Growth] | None:
    """Who grows by how much, first come first served; None: that is not known yet."""
    chunks = {chunk.seq_id: chunk for chunk in under_way.chunks}
    growth: list[_Growth] = []
    for number, group in enumerate(running):
        if not budget:
            prefills = any(one.tokens > 1 for one in growth)
            return None if prefills and any(map(rows_to_decode, running[number:])) else growth
        if group.beams is not None or any(b.fork_from is not None for b in group.branches):
            return None
        for branch in group.branches:
            start, known = branch.num_computed, len(branch.token_ids)
            chunk = chunks.get(branch.seq_id)
            if chunk is not None:
                start += len(chunk.token_ids)
                readout = chunk.readout
                if readout is not None:
                    if branch.num_output_tokens + 1 >= group.request.max_tokens:
                        continue  # this sample is its last
                    if readout.draws > 1 or readout.rows > 1:
                        return None
                    known += 1
            tokens = min(known - start, budget)
            if tokens:
                growth.append(_Growth(group, branch, start, tokens))
                budget -= tokens
    return growth
