"""Prefix caching: what has been computed is found again by texts that begin alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from quire.core.memory import (
    BlockHash,
    BlockMove,
    Contents,
    ContentWatcher,
    Demand,
    KVAllocator,
    SnapshotPlaces,
)
from quire.core.protocol.decision import RecoveryCosts
from quire.core.protocol.request import Request
from quire.core.scheduling.sequence import Sequence, SequenceGroup


class Offload(Protocol):
    """Fetches blocks that the pool does not have from elsewhere, and stores full ones there."""

    @property
    def has_work(self) -> bool:
        """Whether there are blocks that would be stored now."""
        ...

    def widen(self, group: SequenceGroup, demand: Demand) -> Demand:
        """The demand, for what can be fetched as well."""
        ...

    def admitted(self, branch: Sequence, num_tokens: int) -> list[BlockMove]:
        """``num_tokens`` of a branch have been found; the moves that fetch some of them."""
        ...

    def fill(self, branch: Sequence, first: int, end: int) -> None:
        """A step fills these blocks of the branch, which have their names already."""
        ...

    def store(self) -> list[BlockMove]:
        """No step is under way: the moves that store what steps have filled."""
        ...

    def store_no_state(self, name: BlockHash) -> None:
        """It would save too few tokens for its bytes; the block of that name is stored."""
        ...

    def clear(self) -> None:
        """Let nothing be found there that has been computed until now, but on a disk."""
        ...


@dataclass(frozen=True)
class Caching:
    """What a prefix cache has beside the pool.

    offload: makes its use of blocks elsewhere; None: there are none.
    places: where prompts leave snapshots of states; None: layers keep no states.
    """

    offload: Callable[[KVAllocator, Contents, RecoveryCosts], Offload] | None = None
    places: SnapshotPlaces | None = None


class CacheListener(ContentWatcher, Protocol):
    """Learns what can be found, as it changes, with the tokens behind the names."""

    def describe(self, request: Request, sequence: Sequence, num_tokens: int) -> None:
        """What has been stored since the last call is among these first tokens of a sequence."""


class PrefixCache:
    """Gives full blocks their names, and finds them by these in the pool and elsewhere."""

    def __init__(
        self, allocator: KVAllocator, contents: Contents, caching: Caching, costs: RecoveryCosts
    ) -> None:
        self.places = caching.places
        self.settled = True  # neither ``settle`` nor ``store`` has anything to do
        self._contents = contents
        self._block_size = allocator.block_size
        self._listener: CacheListener | None = None
        make = caching.offload
        self._offload = None if make is None else make(allocator, contents, costs)

    @property
    def has_work(self) -> bool:
        """Whether there are blocks that would be stored elsewhere now."""
        return self._offload is not None and self._offload.has_work

    def listen(self, listener: CacheListener) -> None:
        """Tell it from now on what can be found."""
        self._listener = listener
        self._contents.watch(listener)

    def settle(self) -> None:
        """The step under way is done, or will be before another moves blocks."""
        self._contents.settle()
        self.settled = self._offload is None

    def store(self) -> list[BlockMove]:
        """No step is under way: moves that store what is full, to be carried out before others."""
        self.settle()
        return [] if self._offload is None else self._offload.store()

    def publish(self, group: SequenceGroup, branch: Sequence, start: int, end: int) -> None:
        """Let the branch's blocks be found that are full of its first ``end`` tokens.

        ``start``: the first of them that is computed only now.

        Safe before they are computed: who finds them in this step reads them after it has written
        them; if the step fails, or a block of it does not come back, they are invalidated. Safe
        only for tokens that are confirmed: a name that is given cannot be taken back unnoticed.
        """
        size = self._block_size
        branch.hash_blocks(size)
        self._contents.commit(branch.seq_id, branch.block_hashes, end // size)
        self.settled = False
        if self._listener is not None:
            self._listener.describe(group.request, branch, end)
        if self._offload is not None:
            self._offload.fill(branch, start // size, end // size)

    def leave(
        self, group: SequenceGroup, branch: Sequence, start: int, end: int
    ) -> list[tuple[int, int]]:
        """Where the branch leaves states within these tokens: after how many, in which slots."""
        assert self.places is not None, "the branch has some"
        left = []
        for place, idle in self.places.in_turn(branch.places_between(start, end)):
            count = place // self._block_size
            if idle and self._offload is not None:
                self._offload.store_no_state(branch.block_hashes[count - 1])
            slot = self._contents.leave(branch.seq_id, branch.block_hashes, count, idle=idle)
            if slot is not None:
                left.append((place, slot))
                if self._listener is not None:
                    self._listener.describe(group.request, branch, place)
        return left

    def holds(self, branch: Sequence, place: int, slot: int) -> bool:
        """Whether that slot is still for what the branch leaves there."""
        found = self._contents.locate_state(branch.block_hashes[place // self._block_size - 1])
        return found is not None and found[1] == slot

    def widen(self, group: SequenceGroup, demand: Demand) -> Demand:
        """The demand, for what can be fetched as well."""
        return demand if self._offload is None else self._offload.widen(group, demand)

    def admitted(self, group: SequenceGroup, num_tokens: int) -> list[BlockMove]:
        """``num_tokens`` of the group have been found; the moves that fetch some of them."""
        self.restored(group)
        if self._offload is None:
            return []
        return self._offload.admitted(group.branches[0], num_tokens)

    def restored(self, group: SequenceGroup) -> None:
        """Memory has published blocks of the group that came from elsewhere."""
        if self._listener is not None:
            for branch in group.branches:
                self._listener.describe(group.request, branch, len(branch.token_ids))

    def invalidate(self, blocks: Iterable[tuple[int, int]]) -> None:
        """Let nobody find what these blocks were to hold: (KV group, block) of the device."""
        for kv_group, block in blocks:
            self._contents.invalidate(block, kv_group)

    def clear(self) -> None:
        """Let nobody find what has been computed until now, but on a disk."""
        self._contents.clear_contents()
        if self._offload is not None:
            self._offload.clear()
