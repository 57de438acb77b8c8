"""Chunks of the tokens that the allocator has made room for."""

from __future__ import annotations

from quire.memory import BlockMove, KVAllocator
from quire.scheduling.sequence import Sequence, SequenceGroup
from quire.scheduling.step import IN_FLIGHT, Chunk, Step


class Chunker:
    """Makes chunks, and publishes the blocks that they fill."""

    def __init__(self, allocator: KVAllocator, enable_prefix_caching: bool) -> None:
        self._allocator = allocator
        self._enable_prefix_caching = enable_prefix_caching

    def add(
        self, group: SequenceGroup, wants: dict[int, int], moves: list[BlockMove], step: Step
    ) -> int:
        """Let a step compute ``wants``, once it has carried out ``moves``; how many tokens."""
        if moves:
            step.moves.extend(moves)
            group.memory.copied_blocks += len(moves)
        if len(group.branches) == 1:  # most groups
            (tokens,) = wants.values()
            branch = group.branches[0]
            chunk = self.cut(group, branch, branch.num_computed, tokens)
            step.chunks.append(chunk)
            table = chunk.table
            held = len(table.block_ids)
            if table.further:
                held += sum(len(other.block_ids) for other in table.further)
            if held != group.memory.blocks:
                group.memory.hold(held, 0)
            return tokens
        for branch in group.branches:
            if branch.seq_id in wants:
                start, tokens = branch.num_computed, wants[branch.seq_id]
                step.chunks.append(self.cut(group, branch, start, tokens))
        group.memory.hold(*self._allocator.blocks_held(group.tables()))
        return sum(wants.values())

    def cut(self, group: SequenceGroup, branch: Sequence, start: int, tokens: int) -> Chunk:
        """A chunk of ``tokens`` known tokens from position ``start`` on."""
        request = group.request
        end, size = start + tokens, self._allocator.block_size
        if self._enable_prefix_caching and end // size > start // size:
            # Others may find the blocks that this step fills, from this step on.
            self.publish(branch, end)
        samples = candidates = 0
        if end == len(branch.token_ids):
            if group.beams is not None:
                candidates = group.beams.num_candidates
            else:
                samples = 1 if group.expanded else request.params.width
        return Chunk(
            branch.seq_id,
            request,
            branch.index,
            [branch.token_ids[start]] if tokens == 1 else branch.token_ids[start:end].tolist(),
            start,
            self._allocator.table(branch.seq_id),
            samples,
            _history(branch) if request.params.needs_history else (),
            branch.num_prompt_tokens,
            candidates,
        )

    def next_unknown(self, group: SequenceGroup, branch: Sequence) -> tuple[Chunk, bool]:
        """A chunk of the token that the step under way samples, and one sample after it.

        Whether it fills a block, which is to be published once the token is known.
        """
        start, size = len(branch.token_ids), self._allocator.block_size
        who = (branch.seq_id, group.request, branch.index)
        table, prompt = self._allocator.table(branch.seq_id), branch.num_prompt_tokens
        history = _history(branch) if group.request.params.needs_history else ()
        chunk = Chunk(*who, [IN_FLIGHT], start, table, 1, history, prompt)
        return chunk, self._enable_prefix_caching and not (start + 1) % size

    def publish(self, branch: Sequence, end: int) -> None:
        """Let the branch's blocks be found that are full of its first ``end`` tokens."""
        size = self._allocator.block_size
        branch.hash_blocks(size)
        self._allocator.commit(branch.seq_id, branch.block_hashes, end // size)


def _history(branch: Sequence) -> tuple[int, ...]:
    return tuple(branch.token_ids[branch.num_prompt_tokens :])
