"""States beyond the pool, beside blocks: larger records, and fewer of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from quire.blocks.store.disk import DiskStore
from quire.blocks.store.tiers import Tiers
from quire.core.memory import BlockHash, BlockSource, Content, name_of_state
from quire.core.scheduling import Capability


class Records(BlockSource, Protocol):
    """Records of one form, which a rank has its part of."""

    def forget(self, name: BlockHash) -> None:
        """Drop what is useless, since another rank lacks its part."""
        ...


Place = TypeVar("Place", bound=Records)


class BlocksAndStates(Generic[Place]):
    """See ``BlockSource``. Blocks are in one place; in another are the states after some of them,
    by names of their own (``name_of_state``).

    kv_group: that of the layers that keep states, the last.
    """

    def __init__(self, blocks: Place, states: Place, kv_group: int) -> None:
        self.blocks, self.states = blocks, states
        self._kv_group = kv_group

    def has(self, name: BlockHash) -> bool:
        return self.blocks.has(name) or self.states.has(name)

    def used(self, names: Iterable[BlockHash]) -> None:
        """See ``BlockSource.used``. With a block, the state after it."""
        ordered = list(names)
        self.blocks.used(ordered)
        self.states.used([name for name in map(name_of_state, ordered) if self.states.has(name)])

    def clear(self) -> None:
        self.blocks.clear()
        self.states.clear()

    def forget(self, name: BlockHash) -> None:
        """Drop what is useless, since another rank lacks its part."""
        self.blocks.forget(name)
        self.states.forget(name)

    def room(self) -> int:
        """See ``BlockSource.room``. A state for which there is none is not stored."""
        return self.blocks.room()

    def read(self, content: Content, kv_group: int, buffers: Sequence[memoryview]) -> None:
        if kv_group == self._kv_group:
            self.states.read(content, 0, buffers)
        else:
            self.blocks.read(content, kv_group, buffers)

    def write(self, content: Content, parts: Sequence[bytes]) -> None:
        """See ``BlockSource.write``. Of a state only the last part is not empty, of a block only
        the others.
        """
        *blocks, state = parts
        if state:
            self.states.write(content, [state])
        else:
            self.blocks.write(content, blocks)


class StateStores(BlocksAndStates[DiskStore | Tiers], Capability):
    """Both stores of an engine.

    apart: blocks between two states of a long prompt.
    """

    def __init__(
        self, blocks: DiskStore | Tiers, states: DiskStore | Tiers, kv_group: int, apart: int
    ) -> None:
        super().__init__(blocks, states, kv_group)
        self._apart = apart

    def seconds_to_fetch(self) -> float:
        """Time to fetch a block, with its part of a state: a text needs one for all its blocks."""
        return self.blocks.seconds_to_fetch() + self.states.seconds_to_fetch() / self._apart

    def close(self) -> None:
        self.blocks.close()
        self.states.close()


Store = DiskStore | Tiers | StateStores


def places_of(store: Store) -> tuple[list[Tiers], list[DiskStore]]:
    """Where a store keeps records: in main memory, and on the disk."""
    parts = [store.blocks, store.states] if isinstance(store, StateStores) else [store]
    tiers = [part for part in parts if isinstance(part, Tiers)]
    disks = [part.disk if isinstance(part, Tiers) else part for part in parts]
    return tiers, [disk for disk in disks if disk is not None]
