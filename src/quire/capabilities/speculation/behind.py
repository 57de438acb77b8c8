"""What a draft model computes in a step: that of an engine, and a simulated one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.core.protocol import Chunk, Step

_MOST = 32  # tokens of a sequence


class Behind:
    """Tokens that a draft model has yet to compute, by sequence.

    It computes whatever its target does, so that a block that holds tokens holds them for both. But
    tokens that come one by one are left until there is something else to compute, or until the
    block that they are in may be moved or given away. So is the last draft of a sequence, of which
    nobody knows before it is verified whether it was right.
    """

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}

    def before_moves(self, step: Step) -> list[Chunk]:
        """What is to be computed before a step moves blocks: all of it, but of sequences that just
        go on, as long as nothing is moved."""
        if not self._chunks:
            return []
        going_on = {} if step.moves else {chunk.seq_id: chunk for chunk in step.chunks}
        due = [one for one in self._chunks.values() if not _goes_on(one, going_on)]
        for chunk in due:
            del self._chunks[chunk.seq_id]
        return due

    def leave(self, chunks: Sequence[Chunk]) -> bool:
        """Leave all of these, which have no drafts to be made. Not, if any has more than a token,
        or too many behind."""
        known = self._chunks
        if not all(
            len(chunk.token_ids) == 1
            and (chunk.seq_id not in known or len(known[chunk.seq_id].token_ids) < _MOST)
            for chunk in chunks
        ):
            return False
        self._chunks |= {chunk.seq_id: self.take(chunk, chunk.token_ids) for chunk in chunks}
        return True

    def take(self, chunk: Chunk, token_ids: Sequence[int]) -> Chunk:
        """What is to be computed of a chunk now: these tokens of it, and those before that were
        left."""
        before = self._chunks.pop(chunk.seq_id, None)
        if before is None:
            return chunk._replace(token_ids=token_ids)
        return chunk._replace(token_ids=[*before.token_ids, *token_ids], start=before.start)

    def verified(self, chunk: Chunk, num_tokens: int) -> None:
        """A chunk whose drafts it has made gave ``num_tokens``: if all drafts were right, the last
        of them is behind."""
        if num_tokens == len(chunk.drafts) + 1:
            self._chunks[chunk.seq_id] = last_of(chunk, chunk.token_ids)

    def clear(self) -> None:
        """Nobody will compute it."""
        self._chunks.clear()


def last_of(chunk: Chunk, token_ids: Sequence[int]) -> Chunk:
    """The last token alone of ``token_ids``, which are a chunk's as far as they are known."""
    start = chunk.start + len(token_ids) - 1
    return chunk._replace(token_ids=[token_ids[-1]], start=start, readout=None)


def _goes_on(behind: Chunk, chunks: Mapping[int, Chunk]) -> bool:
    """Whether a chunk follows directly, and no window has moved on: its keys are still there."""
    chunk = chunks.get(behind.seq_id)
    if chunk is None or chunk.start != behind.start + len(behind.token_ids):
        return False
    if chunk.table is behind.table:  # mostly
        return True
    both = zip(behind.table.kv_groups, chunk.table.kv_groups, strict=True)
    return all(then.num_dropped == now.num_dropped for then, now in both)
