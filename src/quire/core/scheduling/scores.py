"""Log-probabilities of prompts' tokens, kept beside the blocks that hold their keys.

They take the logits of every row, which no block keeps. So what has been made of the logits is kept
by block, under the same names: a prompt that finds both goes on from there. It has to have the
first token of the block in which it goes on, whose row is in the block before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

from quire.core.memory import BlockHash
from quire.core.protocol.step import Chunk, Outcome, TokenLogprobs

_MOST_BYTES = 64 << 20  # of what is kept
_ENTRY_BYTES, _TOP_BYTES = 300, 16  # of a token, and of each of the likeliest beside it


class PromptScores:
    """Those of one request, by block; None: still to come, or (the first) following nothing.

    Blocks may be other requests' too, and filled by them.
    """

    def __init__(self, num_tokens: int, num_top: int, block_size: int) -> None:
        self.num_tokens = num_tokens
        self.num_top = num_top
        self._size = block_size
        count = -(-num_tokens // block_size)
        self.blocks: list[list[TokenLogprobs | None]] = [[None] * block_size for _ in range(count)]

    def counts(self, chunk: Chunk) -> bool:
        """Whether a token of the prompt follows one of the chunk."""
        return chunk.start + 1 < self.num_tokens

    def take(self, start: int, found: Sequence[TokenLogprobs]) -> None:
        """Those of the tokens from position ``start`` on. Who has them twice has the same twice."""
        for position, entry in enumerate(found, start):
            self.blocks[position // self._size][position % self._size] = entry

    def __iter__(self) -> Iterator[TokenLogprobs | None]:
        return islice((entry for block in self.blocks for entry in block), self.num_tokens)


class ScoredBlocks:
    """Blocks of scores by the names of the blocks of keys, the least recently used given up first.

    Of a prompt the end goes first, as wherever blocks make room.

    A block is *promised* when the step that completes it is planned, as keys are: who finds it in
    that step has its entries when the step is done, even if the request that computes them has
    been aborted meanwhile. Nobody promises after a swap: if that failed, what came of it would be
    wrong without everybody who relies on it having the lost block.
    """

    def __init__(self, block_size: int, most_bytes: int = _MOST_BYTES) -> None:
        self._size = block_size
        self._most_bytes, self._bytes = most_bytes, 0
        self._kept: OrderedDict[tuple[BlockHash, int], list[TokenLogprobs | None]] = OrderedDict()
        # Of sequences whose entries are computed: these, and how many steps compute some.
        self.awaited: dict[int, tuple[PromptScores, int]] = {}

    def find(self, hashes: Sequence[BlockHash], num_top: int) -> int:
        """How many leading blocks are there."""
        count = 0
        for name in hashes:
            if (name, num_top) not in self._kept:
                break
            count += 1
        return count

    def reuse(self, scores: PromptScores, hashes: Sequence[BlockHash], cached: int) -> None:
        """The first ``cached`` tokens are not computed again, of a prompt that was found here."""
        count = cached // self._size + 1 if cached else 0
        for number in range(count):
            scores.blocks[number] = self._kept[hashes[number], scores.num_top]
        self._use(hashes[:count], scores.num_top)

    def expect(self, chunk: Chunk, scores: PromptScores) -> None:
        """A step computes entries."""
        _, steps = self.awaited.get(chunk.seq_id, (scores, 0))
        self.awaited[chunk.seq_id] = scores, steps + 1

    def promise(self, chunk: Chunk, scores: PromptScores, hashes: Sequence[BlockHash]) -> None:
        """What a chunk fills will have all its entries when the steps that are planned are done."""
        end = min(chunk.start + len(chunk.token_ids), scores.num_tokens)
        for number in range(chunk.start // self._size, end // self._size):
            key = hashes[number], scores.num_top
            if key not in self._kept:
                self._kept[key] = scores.blocks[number]
                self._bytes += self._cost(scores.num_top)
        self._use(hashes[: end // self._size], scores.num_top)
        while self._bytes > self._most_bytes:
            (_, num_top), _ = self._kept.popitem(last=False)
            self._bytes -= self._cost(num_top)

    def take(self, chunk: Chunk, outcome: Outcome | None, *, sound: bool) -> None:
        """What a step gave, even for a request that is gone: others may wait for it.

        Unless it is sound, nobody may find it.
        """
        scores, steps = self.awaited.get(chunk.seq_id, (None, 0))
        if scores is None or not scores.counts(chunk):
            return
        self.awaited[chunk.seq_id] = scores, steps - 1
        if steps == 1:
            del self.awaited[chunk.seq_id]
        if not sound:
            self.withdraw(scores)
        elif outcome is not None:
            scores.take(chunk.start + 1, outcome.prompt_logprobs)

    def forget(self, seq_id: int) -> None:
        """The steps that compute entries of this sequence have failed."""
        if seq_id in self.awaited:
            self.withdraw(self.awaited.pop(seq_id)[0])

    def clear(self) -> None:
        """Let nothing be found; who has entries keeps them, and has those that it waits for."""
        self._kept.clear()
        self._bytes = 0

    def withdraw(self, scores: PromptScores) -> None:
        """Give up all that is kept of these."""
        own = {id(block) for block in scores.blocks}
        for key in [key for key, block in self._kept.items() if id(block) in own]:
            del self._kept[key]
            self._bytes -= self._cost(key[1])

    def _use(self, hashes: Sequence[BlockHash], num_top: int) -> None:
        """The beginning of a prompt is needed longest."""
        for name in reversed(hashes):
            if (name, num_top) in self._kept:
                self._kept.move_to_end((name, num_top))

    def _cost(self, num_top: int) -> int:
        return self._size * (_ENTRY_BYTES + _TOP_BYTES * num_top)
