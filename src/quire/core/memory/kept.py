"""What the layers of a KV group keep of a text: keys and values of all of it, or of a window, or
a state.

Each kind answers how many blocks that takes, which blocks may go, and which must be there for a
text to go on from; so the beginning of a prompt is found among the blocks that are still there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from quire.core.memory.blocks import OUTSIDE, BlockHash
from quire.core.memory.pool import BlockPool
from quire.core.memory.values import Demand

Find = Callable[[BlockHash], int | None]
"""Where a block of that name is, if anywhere."""


class KV:
    """Keys and values of every token."""

    forgets = False  # whether a text that goes on gives blocks back
    sight = None  # tokens that a token sees at most; None: all before it

    def sink_blocks(self, block_size: int) -> int:
        """Leading blocks that every token sees, and so are never given back."""
        return 0

    def left_behind(self, num_tokens: int, block_size: int) -> int:
        """Leading blocks that no token from position ``num_tokens`` on sees, but for sinks."""
        return 0

    def most_held(self, lengths: Iterable[int], block_size: int) -> int:
        """Blocks that sequences of these ``lengths``, in blocks, hold at most at one time."""
        return sum(lengths)

    def blocks_of(self, num_tokens: int | None, block_size: int) -> int:
        """Blocks of a text of ``num_tokens``; None: of one that goes on for ever."""
        assert num_tokens is not None, "only a window lets a sequence go on for ever"
        return -(-num_tokens // block_size)

    def seqs_that_fit(self, num_blocks: int, num_tokens: int | None, block_size: int) -> int:
        """Sequences of ``num_tokens`` that ``num_blocks`` hold at one time."""
        return num_blocks // self.blocks_of(num_tokens, block_size)

    def find(
        self, names: Sequence[BlockHash], end: int, computed: int, find: Find, block_size: int
    ) -> tuple[int, list[int]]:
        """The longest beginning, of at most ``end`` blocks, from which a text can go on.

        How many of its blocks after the sinks' nobody will see, and the other ones.

        computed: tokens of it, if it has ``end`` blocks.
        """
        return 0, _leading(names, end, find)


class Window(NamedTuple):
    """Keys and values that are still seen: each token sees itself and the ``tokens - 1`` before it,
    and the first ``sinks`` of its text.

    step_tokens: the most tokens that one step computes, over all sequences.
    by_chunks: of those before it, a token sees only the ones from a multiple of ``tokens`` on.
    """

    tokens: int
    step_tokens: int
    sinks: int = 0
    by_chunks: bool = False

    @property
    def forgets(self) -> bool:
        return True

    @property
    def sight(self) -> int:
        return self.tokens + self.sinks

    def sink_blocks(self, block_size: int) -> int:
        return -(-self.sinks // block_size)

    def left_behind(self, num_tokens: int, block_size: int) -> int:
        if self.by_chunks:
            return num_tokens // self.tokens * self.tokens // block_size
        # The next token sees position num_tokens - tokens + 1 and those after it.
        return max(0, num_tokens - self.tokens + 1) // block_size

    def leaves_at(self, num_blocks: int, block_size: int) -> int:
        """From how many tokens on ``left_behind`` is more than ``num_blocks``."""
        end = (num_blocks + 1) * block_size
        whole = -(-end // self.tokens) * self.tokens
        return whole if self.by_chunks else end + self.tokens - 1

    def most_held(self, lengths: Iterable[int], block_size: int) -> int:
        each, total, further = self.seq_blocks(block_size), 0, 0
        for length in lengths:
            total += min(length, each)
            further += max(0, length - each)
        return total + min(further, self.step_blocks(block_size))

    def blocks_of(self, num_tokens: int | None, block_size: int) -> int:
        if num_tokens is None:
            return self.seq_blocks(block_size) + self.step_blocks(block_size)
        return -(-num_tokens // block_size)

    def seqs_that_fit(self, num_blocks: int, num_tokens: int | None, block_size: int) -> int:
        whole = num_blocks // self.blocks_of(num_tokens, block_size)
        spare = num_blocks - self.step_blocks(block_size)
        return max(whole, spare // self.seq_blocks(block_size))

    def find(
        self, names: Sequence[BlockHash], end: int, computed: int, find: Find, block_size: int
    ) -> tuple[int, list[int]]:
        """Searched from the back, each block once: where one is missing, the beginning can only end
        before it. Its last block must be there even if the next token does not see it.
        """
        sinks = self.sink_blocks(block_size)
        leading = _leading(names, min(end, sinks), find)
        if len(leading) < sinks:
            return 0, leading
        first, seen = end, list[int]()
        while end > sinks and first > max(
            sinks, min(self.left_behind(min(end * block_size, computed), block_size), end - 1)
        ):
            first -= 1
            block = find(names[first])
            if block is None:
                end, seen = first, []
            else:
                seen.append(block)
        return max(0, first - sinks), leading + seen[::-1]

    def seq_blocks(self, block_size: int) -> int:
        """Most blocks of a sequence, up to the first block of what a step adds to it.

        The window less one token, and one new token, touch at most one block more than those
        tokens fill; and where a step ends inside a block, that is one more. Beside the sinks'.
        """
        return self.sink_blocks(block_size) + -(-(self.tokens - 1) // block_size) + 2

    def step_blocks(self, block_size: int) -> int:
        """Blocks beside ``seq_blocks`` that a step takes, over all of its sequences."""
        return (self.step_tokens - 1) // block_size


class KeptState(NamedTuple):
    """One value of fixed size for a text, which each of its tokens rewrites.

    every, decoding: tokens between two snapshots, while a prompt is read and while it is answered.
    drafts: the most that a step verifies.
    whole: part of it, of a draft model, keeps nothing of drafts: it may have seen them by the time
        that the slot is copied. So a step that leaves a snapshot verifies none.
    """

    every: int
    decoding: int
    drafts: int = 0
    whole: bool = False

    @property
    def forgets(self) -> bool:
        return False

    @property
    def sight(self) -> None:
        """It stands for all tokens, and takes as long to read however many they are."""
        return None

    def sink_blocks(self, block_size: int) -> int:
        return 0

    def most_held(self, lengths: Iterable[int], block_size: int) -> int:
        return len([*lengths])

    def blocks_of(self, num_tokens: int | None, block_size: int) -> int:
        return 1

    def seqs_that_fit(self, num_blocks: int, num_tokens: int | None, block_size: int) -> int:
        return num_blocks


_ALL = KV()


def kept_by(window: Window | None) -> KV | Window:
    """What layers keep that see so far; None: all that is before them."""
    return _ALL if window is None else window


def dropped(kept: KV | Window, num_tokens: int, block_size: int) -> int:
    """Blocks after the sinks' that no token from position ``num_tokens`` on sees."""
    return max(0, kept.left_behind(num_tokens, block_size) - kept.sink_blocks(block_size))


def most_held(demand: Demand, num_dropped: int, block_size: int, kept: KV | Window) -> int:
    """Blocks that a demand's sequences hold at most at one time.

    num_dropped: blocks that the first of them begins without.
    """
    # What a fork shares counts as its own, where those ahead of it may have dropped it.
    longest = max([demand.num_tokens, *(total for _, total in demand.forks)])
    sinks = kept.sink_blocks(block_size)
    gone = max(sinks, kept.left_behind(longest, block_size))
    lengths = [-(-demand.num_tokens // block_size) - num_dropped]
    for shared, total in demand.forks:
        whole = shared // block_size
        still = min(sinks, whole) + max(0, whole - gone)
        lengths.append(-(-total // block_size) - dropped(kept, shared, block_size) - still)
    return kept.most_held(lengths, block_size)


def _leading(names: Sequence[BlockHash], end: int, find: Find) -> list[int]:
    """The first blocks, up to ``end`` or to one that is not there."""
    blocks = []
    for content in islice(names, end):
        block = find(content)
        if block is None:
            break
        blocks.append(block)
    return blocks


class Hits(NamedTuple):
    """What a demand finds of its beginning."""

    tokens: int  # that need not be computed
    num_dropped: int  # blocks of them, after the sinks', that nobody will read
    blocks: list[int]  # the others; OUTSIDE, where they are to be fetched

    @property
    def end(self) -> int:
        return self.num_dropped + len(self.blocks)

    @property
    def shared(self) -> list[int]:
        """Those of ``blocks`` that are in the pool."""
        return [block for block in self.blocks if block != OUTSIDE]


def find_hits(
    demand: Demand,
    pool: BlockPool,
    block_size: int,
    kept: KV | Window,
    unsettled: Collection[int],
) -> Hits:
    """Blocks that hold the demand's beginning, the last one perhaps but for its last token.

    ``unsettled``: blocks that are computed by the step under way.
    """
    hashes, computed = demand.block_hashes, demand.num_tokens - 1  # one token is left to compute
    if demand.most_cached is not None:
        computed = min(computed, demand.most_cached)
    end = min(-(-computed // block_size), len(hashes))
    # A copy on write is made before the step that computes an unsettled block.
    if end * block_size > computed and pool.find(hashes[end - 1]) in unsettled:
        end -= 1
    dropped, blocks = kept.find(hashes, end, computed, _finder(demand, pool), block_size)
    return Hits(min((dropped + len(blocks)) * block_size, computed), dropped, blocks)


def evicted_tokens(demand: Demand, hits: int, pool: BlockPool, block_size: int) -> int:
    """Tokens after the first ``hits`` blocks that were cached until their blocks were needed."""
    count = 0
    for content in islice(demand.block_hashes, hits, None):
        if pool.eviction(content) is None and pool.find(content) is None:
            break
        count += 1
    return min(count * block_size, max(0, demand.num_tokens - 1 - hits * block_size))


def _finder(demand: Demand, pool: BlockPool) -> Find:
    if not demand.fetchable:
        return pool.find

    def find(content: BlockHash) -> int | None:
        block = pool.find(content)
        return OUTSIDE if block is None and content in demand.fetchable else block

    return find
