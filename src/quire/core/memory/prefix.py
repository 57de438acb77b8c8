"""Finding the beginning of a prompt among the blocks that are still there."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import NamedTuple

from quire.core.memory.blocks import OUTSIDE, BlockHash
from quire.core.memory.kept import KV, Find, Window
from quire.core.memory.pool import BlockPool
from quire.core.memory.values import Demand


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
