"""What a KV allocator answers: admit reserves, append fills and grows, fork shares, free returns.

``None`` always means: no room, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from quire.core.memory.blocks import BlockHash, BlockMove
from quire.core.memory.pool import ContentWatcher
from quire.core.memory.values import BlockTable, Demand, Fit, Unit, Usage
from quire.core.memory.views import PoolView


class Contents(Protocol):
    """The blocks of an allocator by what they hold: what the prefix cache is made of."""

    def commit(self, seq_id: int, block_hashes: Sequence[BlockHash], count: int) -> None:
        """The first ``count`` blocks, by these names, are full once the step under way is done.

        They may be shared from now on, even within that step: it writes before it reads.
        """
        ...

    def leave(
        self, seq_id: int, block_hashes: Sequence[BlockHash], count: int, *, idle: bool = False
    ) -> int | None:
        """The slot in which the step under way is to leave the state that it comes by after the
        first ``count`` blocks. None: it is there, or there is no room for it.

        idle: it may displace no other.

        To be called once the step takes no more blocks and finds none. What it leaves may be
        displaced by what is left after it in the same step: then ``locate_state`` no longer finds
        it.
        """
        ...

    def settle(self) -> None:
        """The step under way is done, or will be before the next one moves blocks."""
        ...

    def locate(self, content: BlockHash) -> Sequence[int] | None:
        """The device blocks, one in each KV group that has blocks, that hold it; None unless all do
        and there are any.
        """
        ...

    def locate_state(self, content: BlockHash) -> tuple[int, int] | None:
        """The KV group that keeps states, and the slot that holds the one after that block."""
        ...

    def take_fetches(self) -> list[BlockMove]:
        """What admissions since the last call have found in a source; move sources are numbers.

        Those of the blocks in their sequence; a state has that of the block before it, and its own
        name in the move. The moves must be carried out before any of it is read.
        """
        ...

    def invalidate(self, block: int, kv_group: int = 0) -> None:
        """Let nobody find what a block of the device was to hold: it does not."""
        ...

    def clear_contents(self) -> None:
        """Let nothing be found of what is here now; block tables stay as they are."""
        ...

    def watch(self, watcher: ContentWatcher) -> None:
        """Tell ``watcher`` from now on what can be found on the device."""
        ...


class KVAllocator(Protocol):
    """Owner of all block tables. Sequence ids are the caller's, and unique while alive."""

    @property
    def block_size(self) -> int: ...

    @property
    def contents(self) -> Contents | None:
        """None where nothing is found again."""
        ...

    unit: Unit  # of figures of what is needed and free

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be taken now, those with cached content included; in ``unit``."""
        ...

    def advance(self, now: float) -> None:
        """Let time pass: blocks are charged to their owners up to ``now``, in seconds."""
        ...

    def fit(self, demand: Demand) -> Fit:
        """Whether ``admit`` would succeed now, later or never. Changes nothing."""
        ...

    def admit(self, seq_id: int, demand: Demand) -> int | None:
        """Reserve ``demand.num_tokens``; how many of them are computed already (a prefix hit).

        A hit always leaves at least one token to compute: its logits are needed. Blocks that a
        source has count as computed: ``Contents.take_fetches`` brings them.
        """
        ...

    def blocks_to_append(self, new_tokens: Mapping[int, int]) -> int:
        """Free blocks that ``append`` would take, beside those that it gives back first.

        In ``unit``. Changes nothing.
        """
        ...

    def append(
        self, new_tokens: Mapping[int, int], group: Collection[int] = ()
    ) -> list[BlockMove] | None:
        """Room for ``{seq_id: tokens}`` more, for all of these sequences or for none.

        The step before is done, or will be before this one writes: blocks that these tokens and all
        later ones cannot see are given back first, even where the answer is None. So are those of
        the ``group``, of which some may wait for others and not grow.

        The moves (copies on write) must be carried out before the tokens are written.
        """
        ...

    def draft(self, seq_id: int, count: int) -> bool:
        """Room for ``count`` tokens more, in the step that the last ``append`` was for.

        They may turn out wrong, so nothing is given back or copied for them: False where they
        would take more than free blocks.
        """
        ...

    def trim(self, seq_id: int, num_tokens: int) -> None:
        """Take tokens back, all but ``num_tokens``: those it was admitted with, or had before the
        last append or fork, stay.

        The sequence is as if the others had not come, but that copies, and regions that have grown,
        stay as they are. What they shared a block with is not found by content any more.
        """
        ...

    def fork(self, parent_id: int, child_id: int) -> list[BlockMove]:
        """A child that shares all the tokens of its parent."""
        ...

    def keep(self, seq_id: int, num_tokens: int, seconds: float) -> None:
        """Evict the blocks of its first tokens after others, for so long, once they are free.

        Of all blocks, only a share can be kept. Nothing is done for what is swapped out.
        """
        ...

    def free(self, seq_id: int, *, invalid: bool = False) -> float:
        """Give back everything that only this sequence holds, on the device or swapped out.

        Returns what the sequence is charged: block-seconds on the device, each block's time
        divided among those who shared it. ``invalid``: its blocks do not hold what was committed
        (a step failed), so nobody may find them again.
        """
        ...

    def charge(self, seq_id: int) -> float:
        """What ``free`` would return now."""
        ...

    def swap_out(self, seq_ids: Iterable[int]) -> list[BlockMove] | None:
        """Move these sequences to host blocks, one for each distinct block they hold."""
        ...

    def swap_in(self, seq_ids: Iterable[int], headroom: int = 0) -> list[BlockMove] | None:
        """Bring swapped-out sequences back, sharing what they shared.

        Blocks whose content is still on the device are adopted, not copied. ``headroom`` blocks
        must be left free for the sequences that are running.
        """
        ...

    def blocks_to_swap_in(self, seq_ids: Iterable[int], headroom: int = 0) -> int:
        """Free blocks that ``swap_in`` would take, the headroom included; in ``unit``.

        Changes nothing.
        """
        ...

    def table(self, seq_id: int) -> BlockTable:
        """The sequence's blocks; of the host, if it is swapped out."""
        ...

    def num_tokens(self, seq_id: int) -> int:
        """How many tokens of the sequence have a slot."""
        ...

    def blocks_held(self, seq_ids: Sequence[int]) -> tuple[int, int]:
        """Distinct device blocks of these sequences, and how many more without sharing."""
        ...

    def usage(self) -> Usage:
        """The pool's slots by what they are doing, from counters."""
        ...

    def views(self) -> tuple[PoolView, ...]:
        """The pools, for those who look at every block: one for each KV group."""
        ...

    def audit(self, known: Collection[int]) -> list[str]:
        """What was wrong with its counts, in words; it no longer is. While no step is under way.

        It should never find anything. If it does, a server that has been up for weeks had rather
        lose a cached prefix than blocks for good.

        known: the sequences that have block tables by right; no others keep theirs.
        """
        ...
