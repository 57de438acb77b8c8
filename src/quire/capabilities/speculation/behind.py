"""What a draft model computes in a step: that of an engine, and a simulated one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.core.protocol import TO_DRAFT, Chunk, Readout, Step

_MOST = 32  # tokens of a sequence


class Behind:
    """Tokens that a draft model has yet to compute, by sequence.

    It computes whatever its target does, so that a block that holds tokens holds them for both. But
    tokens that come one by one are left until there is something else to compute, or until the
    block that they are in may be moved or given away. So is the last draft of a sequence, of which
    nobody knows before it is verified whether it was right.

    keeps_states: whether its layers keep some. A state cannot be cut back, so all drafts are left,
        whoever has made them, until it is known which were right, and that the text has not ended
        among them.
    """

    def __init__(self, *, keeps_states: bool = False) -> None:
        self.keeps_states = keeps_states
        self._chunks: dict[int, Chunk] = {}

    def before_moves(self, step: Step) -> list[Chunk]:
        """What is to be computed before a step moves blocks: nothing, if all sequences just go on
        and nothing is moved; else all of it, since one may have found what another has left."""
        if not self._chunks:
            return []
        going_on = {} if step.moves else {chunk.seq_id: chunk for chunk in step.chunks}
        for opened in step.opened:  # a session's may go on in other blocks, after a cut
            going_on.pop(opened.seq_id, None)
        due = [*self._chunks.values()]
        if all(_goes_on(one, going_on) for one in due):
            return []
        self._chunks.clear()
        if not self.keeps_states:
            return due
        return [one if one.seq_id in step.within else _with_drafts(one, 0) for one in due]

    def leave(self, chunks: Sequence[Chunk]) -> bool:
        """Put off chunks that have no drafts to be made.

        False: one has several tokens, or too many behind it; then none is put off.
        """
        known = self._chunks
        for chunk in chunks:
            count = _num_settled(chunk) if self.keeps_states else len(chunk.token_ids)
            before = known.get(chunk.seq_id)
            if count != 1 or (before is not None and len(before.token_ids) >= _MOST):
                return False
        self._chunks |= {chunk.seq_id: self.take(chunk) for chunk in chunks}
        return True

    def take(self, chunk: Chunk) -> Chunk:
        """What is to be computed of a chunk now: its tokens as far as they are known, and those
        before that were left. A state keeps no trace of drafts among them, which are needed only
        where more are to be made.
        """
        token_ids, to_draft = chunk.token_ids, chunk.token_ids[-1] == TO_DRAFT
        if to_draft:
            token_ids = token_ids[: token_ids.index(TO_DRAFT)]
        if self.keeps_states:
            settled = _num_settled(chunk)
            token_ids = token_ids if to_draft else token_ids[:settled]
            chunk = _with_drafts(chunk, len(token_ids) - settled)
        before = self._chunks.pop(chunk.seq_id, None)
        if before is None:
            return chunk._replace(token_ids=token_ids)
        return chunk._replace(token_ids=[*before.token_ids, *token_ids], start=before.start)

    def further(self, chunk: Chunk, token_ids: Sequence[int]) -> Chunk:
        """What is to be computed for one more draft after ``token_ids``, which are a chunk's as far
        as they are known: the last one, or all of its drafts, of which a state has kept nothing.
        """
        if not self.keeps_states:
            return _part(chunk, token_ids, len(token_ids) - 1)
        settled = _num_settled(chunk)
        return _with_drafts(_part(chunk, token_ids, settled), len(token_ids) - settled)

    def verified(self, chunk: Chunk, num_tokens: int) -> None:
        """A chunk with drafts gave ``num_tokens``, one more than were right of them. Those that
        have yet to be computed are behind: all, where states are kept; else the last one, where it
        has made it.
        """
        settled = _num_settled(chunk)
        first = settled if self.keeps_states else len(chunk.token_ids) - 1
        right = chunk.token_ids[: max(first, settled + num_tokens - 1)]
        if len(right) > first:
            part = self.take(_part(chunk, right, first))
            # What lies beyond the end of a text stays a draft, of which a state keeps no trace.
            drafts = len(right) - first if self.keeps_states else 0
            self._chunks[chunk.seq_id] = _with_drafts(part, drafts)

    def clear(self) -> None:
        """Forget all that was put off."""
        self._chunks.clear()


def _num_settled(chunk: Chunk) -> int:
    """Tokens of a chunk that are no drafts."""
    return len(chunk.token_ids) - len(chunk.drafts)


def _part(chunk: Chunk, token_ids: Sequence[int], first: int) -> Chunk:
    """The part of a chunk from ``first`` on; ``token_ids`` are its tokens that are known."""
    return chunk._replace(token_ids=token_ids[first:], start=chunk.start + first, readout=None)


def _with_drafts(chunk: Chunk, count: int) -> Chunk:
    """A chunk whose last tokens are drafts."""
    return chunk._replace(readout=Readout(1 + count) if count else None)


def _goes_on(behind: Chunk, chunks: Mapping[int, Chunk]) -> bool:
    """Whether a chunk follows directly, and no window has moved on: its keys are still there."""
    chunk = chunks.get(behind.seq_id)
    if chunk is None or chunk.start != behind.start + len(behind.token_ids):
        return False
    if chunk.table is behind.table:  # mostly
        return True
    both = zip(behind.table.kv_groups, chunk.table.kv_groups, strict=True)
    return all(then.num_dropped == now.num_dropped for then, now in both)
