"""Prefix caching: what has been computed is found again by texts that begin alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from quire.core.memory import (
    BlockMove,
    BlockSource,
    Contents,
    ContentWatcher,
    Demand,
    KVAllocator,
    SnapshotPlaces,
)
from quire.core.protocol.decision import RecoveryCosts
from quire.core.protocol.request import Request
from quire.core.scheduling.offloading import Offloading
from quire.core.scheduling.sequence import Sequence, SequenceGroup


@dataclass(frozen=True)
class Caching:
    """What a prefix cache has beside the pool.

    source: blocks that the pool does not have are fetched from it, and full ones stored in it.
    places: where prompts leave snapshots of states; None: layers keep no states.
    """

    source: BlockSource | None = None
    places: SnapshotPlaces | None = None


class CacheListener(ContentWatcher, Protocol):
    """Learns what can be found, as it changes, with the tokens behind the names."""

    def describe(self, request: Request, sequence: Sequence, num_tokens: int) -> None:
        """What has been stored since the last call is among these first tokens of a sequence."""


class PrefixCache:
    """Gives full blocks their names, and finds them by these in the pool and in a source."""

    def __init__(
        self, allocator: KVAllocator, contents: Contents, caching: Caching, costs: RecoveryCosts
    ) -> None:
        size, source = allocator.block_size, caching.source
        self.places = caching.places
        self.settled = True  # neither ``settle`` nor ``store`` has anything to do
        self._contents = contents
        self._block_size = size
        self._listener: CacheListener | None = None
        self._offloading: Offloading | None = None
        if source is not None:
            self._offloading = Offloading(allocator, contents, source, costs)

    @property
    def has_work(self) -> bool:
        """Whether there are blocks that the source would take now."""
        return self._offloading is not None and self._offloading.has_work

    def listen(self, listener: CacheListener) -> None:
        """Tell it from now on what can be found."""
        self._listener = listener
        self._contents.watch(listener)

    def settle(self) -> None:
        """The step under way is done, or will be before another moves blocks."""
        self._contents.settle()
        self.settled = self._offloading is None

    def store(self) -> list[BlockMove]:
        """No step is under way: the moves that store what steps have filled.

        To be carried out before anything else is moved.
        """
        self.settle()
        return [] if self._offloading is None else self._offloading.store()

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
        if self._offloading is not None:
            self._offloading.fill(branch, start // size, end // size)

    def leave(
        self, group: SequenceGroup, branch: Sequence, start: int, end: int
    ) -> list[tuple[int, int]]:
        """Where the branch leaves states within these tokens: after how many, in which slots."""
        assert self.places is not None, "the branch has some"
        left = []
        for place, idle in self.places.in_turn(branch.places_between(start, end)):
            count = place // self._block_size
            if idle and self._offloading is not None:
                self._offloading.store_no_state(branch.block_hashes[count - 1])
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
        return demand if self._offloading is None else self._offloading.widen(group, demand)

    def admitted(self, group: SequenceGroup, num_tokens: int) -> list[BlockMove]:
        """``num_tokens`` of the group have been found; the moves that fetch some of them."""
        self.restored(group)
        if self._offloading is None:
            return []
        return self._offloading.admitted(group.branches[0], num_tokens)

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
        if self._offloading is not None:
            self._offloading.clear()
