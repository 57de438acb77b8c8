"""How many tokens a group computes in a step, and chunks of those that there is room for."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from quire.core.memory import BlockMove, KVAllocator, MoveKind
from quire.core.protocol.step import IN_FLIGHT, Chunk, Readout, Step
from quire.core.scheduling.decoding import LiveGroups
from quire.core.scheduling.prefix_cache import PrefixCache
from quire.core.scheduling.scores import PromptScores, ScoredBlocks
from quire.core.scheduling.sequence import Sequence, SequenceGroup, Status

_NEXT = Readout()  # one sample, from the last row: most chunks

SCORED_AT_ONCE = 128
"""Most tokens of a prompt with ``prompt_logprobs`` that one step computes: to find up to a hundred
likeliest tokens for each takes longer than the step, and all other requests wait for it."""


class Chunker:
    """Makes chunks, and publishes the blocks that they fill as soon as their tokens are known."""

    def __init__(
        self,
        allocator: KVAllocator,
        live: LiveGroups,
        scored: ScoredBlocks,
        cache: PrefixCache | None,
    ) -> None:
        self._allocator = allocator
        self._live = live
        self._scored = scored
        self._cache = cache
        # Sequences whose planned tokens fill blocks, if they are right, and from where on.
        self.unpublished: list[tuple[int, int]] = []

    def add(
        self, group: SequenceGroup, new_tokens: dict[int, int], moves: list[BlockMove], step: Step
    ) -> int:
        """Let a step compute ``new_tokens``, once it has carried out ``moves``; how many tokens."""
        if moves:
            step.moves.extend(moves)
            group.memory.copied_blocks += len(moves)
        if len(group.branches) == 1:  # most groups
            (tokens,) = new_tokens.values()
            branch = group.branches[0]
            chunk = self.add_chunk(group, branch, branch.num_computed, tokens, step)
            table = chunk.table
            held = len(table.block_ids)
            if table.further:
                held += sum(len(other.block_ids) for other in table.further)
            if held != group.memory.blocks:
                group.memory.hold(held, 0)
            return tokens
        for branch in group.branches:
            if branch.seq_id in new_tokens:
                start, tokens = branch.num_computed, new_tokens[branch.seq_id]
                self.add_chunk(group, branch, start, tokens, step)
        group.memory.hold(*self._allocator.blocks_held(group.tables()))
        return sum(new_tokens.values())

    def add_chunk(
        self, group: SequenceGroup, branch: Sequence, start: int, tokens: int, step: Step
    ) -> Chunk:
        """Let a step compute ``tokens`` known tokens from position ``start`` on."""
        token_ids, size, end = branch.token_ids, self._allocator.block_size, start + tokens
        if self._cache is not None and end // size > start // size:
            # Others may find the blocks that this step fills, from this step on.
            self._cache.publish(group, branch, start, end)
        readout = None
        if end == len(token_ids):
            decodes = group.expanded and group.beams is None  # most, so without a call
            readout = _NEXT if decodes else _readout(group)
        chunk = Chunk(
            branch.seq_id,
            [token_ids[start]] if tokens == 1 else token_ids[start:end].tolist(),
            start,
            self._allocator.table(branch.seq_id),
            branch.num_prompt_tokens,
            readout,
            branch.cuts,
        )
        step.chunks.append(chunk)
        if group.scores is not None and group.scores.counts(chunk):
            self._score(group.scores, branch, chunk, step)
        return chunk

    def _score(self, scores: PromptScores, branch: Sequence, chunk: Chunk, step: Step) -> None:
        """The chunk's rows are scored; what is full by it may be found."""
        self._scored.expect(chunk, scores)
        brought = any(move.kind in (MoveKind.SWAP_IN, MoveKind.FETCH) for move in step.moves)
        if self._cache is not None and not brought:
            self._scored.promise(chunk, scores, branch.block_hashes)

    def next_unknown(self, branch: Sequence) -> Chunk:
        """A chunk of the token that the step under way samples, and one sample after it."""
        start, table = len(branch.token_ids), self._allocator.table(branch.seq_id)
        self._note_unknown(branch.seq_id, start, start + 1)
        facts = branch.num_prompt_tokens, _NEXT, branch.cuts
        return Chunk(branch.seq_id, [IN_FLIGHT], start, table, *facts)

    def add_drafts(self, step: Step, drafts: Mapping[int, Seq[int]], budget: int) -> None:
        """Let a step verify ``drafts`` too, by sequence, where there is room for them."""
        for index, chunk in enumerate(step.chunks):
            if not budget:
                break
            found = self._live.branch(chunk.seq_id) if chunk.seq_id in drafts else None
            if found is None or chunk.readout is not _NEXT or not found[0].expanded:
                continue
            group, branch = found
            seq_id, known = branch.seq_id, len(branch.token_ids)
            # One more token is sampled than drafts are confirmed.
            most = min(budget, group.request.max_tokens - branch.num_output_tokens - 1)
            if self._cache is not None and self._cache.places is not None:
                most = min(most, self._cache.places.most_drafts(known))
            own = drafts[seq_id][:most]
            if own and self._allocator.draft(seq_id, len(own)):
                self._note_unknown(seq_id, known, known + len(own))
                table = chunk.table
                if len(table.block_ids) * self._allocator.block_size < known + len(own):
                    table = self._allocator.table(seq_id)
                    group.memory.hold(*self._allocator.blocks_held(group.tables()))
                readout = Readout(1 + len(own))
                tokens = [*chunk.token_ids, *own]
                step.chunks[index] = chunk._replace(token_ids=tokens, table=table, readout=readout)
                budget -= len(own)

    def leave_states(self, step: Step, cache: PrefixCache) -> None:
        """Let a step that is complete otherwise leave states where its chunks come by."""
        leaving: list[tuple[int, Sequence, Seq[tuple[int, int]]]] = []
        for index, chunk in enumerate(step.chunks):
            # One that verifies drafts has nothing else to compute, but after a recompute.
            if len(chunk.token_ids) > 1 and not chunk.drafts:
                found = self._live.branch(chunk.seq_id)
                assert found is not None, "it is the step's"
                left = cache.leave(*found, chunk.start, chunk.start + len(chunk.token_ids))
                if left:
                    leaving.append((index, found[1], left))
        taken: set[int] = set()  # what is displaced may be left again in the same slot, by an equal
        for index, branch, wanted in leaving:
            still = [one for one in wanted if one[1] not in taken and cache.holds(branch, *one)]
            taken.update(slot for _, slot in still)
            step.chunks[index] = step.chunks[index]._replace(left=still)

    def publish_known(self) -> None:
        """A step has been taken in: publish what is full of tokens that are known by it."""
        assert self._cache is not None, "nothing is noted without"
        for seq_id, start in self.unpublished:
            found = self._live.branch(seq_id)
            if found is not None and found[0].status is Status.RUNNING:
                known = len(found[1].token_ids)
                end = min(known, self._allocator.num_tokens(seq_id))
                self._cache.publish(*found, start, end)
        self.unpublished.clear()

    def _note_unknown(self, seq_id: int, start: int, end: int) -> None:
        """Positions from ``start`` to ``end`` are computed before their tokens are known."""
        size = self._allocator.block_size
        if self._cache is not None and end // size > start // size:
            self.unpublished.append((seq_id, start))


def _readout(group: SequenceGroup) -> Readout:
    if group.request.max_tokens == 0:
        return Readout(rows=0, pool=group.request.pooling is not None)
    if group.beams is not None:
        return Readout(candidates=group.beams.num_candidates)
    width = group.request.params.width
    return _NEXT if width == 1 else Readout(draws=width)


def tokens_to_compute(group: SequenceGroup, budget: int) -> dict[int, int]:
    """{seq_id: tokens} that the group's branches can compute now, within a budget of tokens.

    Beams are compared with each other, so all of them take their next token in one step: one that
    is behind catches up to its last token but one, and the last is computed when all are ready.
    """
    branches = group.branches
    if len(branches) == 1:  # most groups
        branch = branches[0]
        pending = len(branch.token_ids) - branch.num_computed
        if pending > SCORED_AT_ONCE and group.request.params.prompt_logprobs is not None:
            pending = SCORED_AT_ONCE
        return {branch.seq_id: pending if pending < budget else budget}
    if group.beams is not None:
        if all(b.fork_from is None and b.num_pending == 1 for b in branches):
            return {b.seq_id: 1 for b in branches} if budget >= len(branches) else {}
        return _tokens_of_each(group, budget, keep=1)
    return _tokens_of_each(group, budget, keep=0)


def _tokens_of_each(group: SequenceGroup, budget: int, keep: int) -> dict[int, int]:
    """Hand out the budget branch by branch, leaving ``keep`` tokens of each for later."""
    found: dict[int, int] = {}
    for branch in group.branches:
        if branch.fork_from is not None:
            continue
        tokens = branch.num_pending - keep
        if tokens > 1 - keep:
            pause = group.next_fork(branch)
            if pause is not None:
                tokens = pause - branch.num_computed
        tokens = min(tokens, budget)
        if tokens:
            found[branch.seq_id] = tokens
            budget -= tokens
    return found
