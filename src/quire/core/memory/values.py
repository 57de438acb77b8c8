"""What a sequence demands of memory, and what memory answers."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from quire.core.memory.blocks import BlockHash


@dataclass(frozen=True)
class Demand:
    """What a sequence needs at admission, and what its future forks will need.

    num_tokens: tokens to reserve for at once (the prompt; everything known, when recomputing).
    block_hashes: of those tokens' full blocks, in order; empty to stay out of the prefix cache.
    forks: for each further branch, (tokens it shares with an earlier one, tokens in all).
    headroom: blocks to leave free for the sequences that are already running.
    width: branches that the sequence and its forks will be at most at one time.
    most_cached: tokens that may be found computed; None: all but one.
    longest: tokens that a branch can have at most. Only allocators that reserve ahead of need
        look at width and longest.
    fetchable: names of blocks that can be fetched where the pool does not have them. It answers
        the same each time.
    known: tokens whose blocks are here, with or without a state to go on from; for who keeps states
        it is filled in.
    begins: the name of its first full block, wherever that is; filled in likewise.
    """

    num_tokens: int
    block_hashes: Sequence[BlockHash] = ()
    forks: Sequence[tuple[int, int]] = ()
    headroom: int = 0
    width: int = 1
    longest: int = 0
    most_cached: int | None = None
    fetchable: Container[BlockHash] = ()
    known: int = 0
    begins: BlockHash | None = None


Unit = Literal["blocks", "pages"]
"""Of what is needed and free: pages, where KV groups share them."""


class When(Enum):
    NOW = "now"
    LATER = "later"  # once others have freed enough
    NEVER = "never"  # not even in an empty pool


class Fit(NamedTuple):
    """Whether a demand fits, with the figures behind the answer, in the allocator's unit."""

    when: When
    needed: int  # blocks to take from the free ones, headroom included
    free: int
    capacity: int
    cached: int = 0  # tokens that a prefix hit saves
    evicted: int = 0  # tokens that it would have saved, had their blocks not been taken since
    stateless: int = 0  # tokens whose blocks are here, but no state to go on from after them


class BlockTable(NamedTuple):
    """A frozen view: physical block ``block_ids[i]`` is the sequence's logical block ``i`` if that
    is one of its attention sinks', and ``num_dropped + i`` after them."""

    block_ids: tuple[int, ...]
    block_size: int
    num_dropped: int = 0  # blocks after the sinks' that no later token can see, given back
    num_sink_blocks: int = 0
    further: tuple[BlockTable, ...] = ()  # in the pools of further KV groups
    keeps_state: bool = False  # its one block is the slot of what the whole sequence has left
    confirmed: int = 0  # the last drafts of the step before, which that state has not seen

    @property
    def kv_groups(self) -> tuple[BlockTable, ...]:
        """The sequence's table in each KV group's pool."""
        return (self, *self.further)

    def block(self, logical: int) -> int:
        """The physical block of a logical one; IndexError if the sequence does not hold it."""
        kept = self.num_sink_blocks + self.num_dropped
        if self.num_sink_blocks <= logical < kept:
            raise IndexError(f"block {logical} has been given back: no later token sees it")
        index = logical if logical < kept else logical - self.num_dropped
        if not 0 <= index < len(self.block_ids):
            raise IndexError(f"block {logical} is none of this table's: it ends before block "
                             f"{len(self.block_ids) + self.num_dropped}")  # fmt: skip
        return self.block_ids[index]

    def slot(self, position: int) -> int:
        """Where a position's key and value are in the pool, in tokens from its beginning.

        IndexError where the sequence holds no block for it: no longer, or not yet.
        """
        offset = position % self.block_size
        return self.block(position // self.block_size) * self.block_size + offset


class Usage(NamedTuple):
    """Every slot of the pool, by what it is doing. The parts sum to the capacity.

    Where KV groups share pages, of a unit: a block of theirs has ``span`` times as many.
    """

    used: int = 0  # hold a token's key and value
    reserved: int = 0  # promised to tokens of an admitted sequence that are not computed yet
    internal: int = 0  # in a held block, promised to nobody: the unfilled tails
    external: int = 0  # free, but in pieces too small to be given out
    cached: int = 0  # free, content kept for a prefix hit until the block is needed
    free: int = 0

    @property
    def capacity(self) -> int:
        return sum(self)
