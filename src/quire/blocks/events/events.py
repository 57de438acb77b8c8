"""What can be found in the prefix cache, as it changes, with the tokens behind the names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from itertools import pairwise
from typing import NamedTuple

from quire.core.memory import BlockHash
from quire.core.protocol import Adapter, Request
from quire.core.scheduling import Scheduler
from quire.core.scheduling.sequence import Sequence


class BlocksStored(NamedTuple):
    """Full blocks of one text, one after the other, that can be found from now on."""

    kv_group: int
    names: Seq[BlockHash]
    parent: BlockHash | None  # the block before; None: they begin the text
    token_ids: Seq[int]
    adapter: Adapter | None
    cache_salt: str


class BlocksRemoved(NamedTuple):
    """Blocks that can no longer be found."""

    kv_group: int
    names: Seq[BlockHash]


class AllBlocksCleared(NamedTuple):
    """Nothing can be found any more, in any KV group."""


BlockEvent = BlocksStored | BlocksRemoved | AllBlocksCleared


class BlockEvents:
    """Events in the order in which they happen, until they are taken: a ``CacheListener``."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._events: list[BlockEvent] = []
        self._undescribed: dict[BlockHash, list[int]] = {}  # by name: in which KV groups
        self._untold: set[tuple[int, BlockHash]] = set()  # of texts with vectors: no tokens tell it

    @classmethod
    def of(cls, scheduler: Scheduler) -> BlockEvents | None:
        """The events of a scheduler's prefix cache from now on; None: it has none."""
        if scheduler.prefix_cache is None:
            return None
        events = cls(scheduler.allocator.block_size)
        scheduler.prefix_cache.listen(events)
        return events

    def stored(self, kv_group: int, content: BlockHash) -> None:
        self._undescribed.setdefault(content, []).append(kv_group)

    def removed(self, kv_group: int, content: BlockHash) -> None:
        if (kv_group, content) in self._untold:
            self._untold.remove((kv_group, content))
            return
        last = self._events[-1] if self._events else None
        if isinstance(last, BlocksRemoved) and last.kv_group == kv_group:
            self._events[-1] = BlocksRemoved(kv_group, (*last.names, content))
        else:
            self._events.append(BlocksRemoved(kv_group, (content,)))

    def cleared(self) -> None:
        self._untold.clear()
        self._events = [AllBlocksCleared()]  # whatever happened before is undone

    def describe(self, request: Request, sequence: Sequence, num_tokens: int) -> None:
        names, index = sequence.block_hashes, num_tokens // self._block_size
        index = min(index, len(names))
        places: dict[int, list[int]] = {}
        while self._undescribed and index:  # from the back: most often it is the last one
            index -= 1
            for kv_group in self._undescribed.pop(names[index], ()):
                if sequence.spans:
                    self._untold.add((kv_group, names[index]))
                else:
                    places.setdefault(kv_group, []).append(index)
        for kv_group, indices in places.items():
            for first, end in _runs(reversed(indices)):
                cuts = [i for i in sequence.cut_blocks(self._block_size) if first < i < end]
                for one, other in pairwise([first, *dict.fromkeys(cuts), end]):
                    self._events.append(self._stored(kv_group, request, sequence, one, other))

    def take(self) -> list[BlockEvent]:
        """What has happened since the last call."""
        events, self._events = self._events, []
        return events

    def _stored(
        self, kv_group: int, request: Request, sequence: Sequence, first: int, end: int
    ) -> BlocksStored:
        names, size = sequence.block_hashes, self._block_size
        return BlocksStored(
            kv_group,
            names[first:end],
            sequence.parent_hash(first, size),
            sequence.token_ids[first * size : end * size].tolist(),
            request.adapter,
            request.cache_salt,
        )


def _runs(indices: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Beginnings and ends of runs of consecutive indices."""
    first = end = -1
    for index in indices:
        if index != end:
            if end >= 0:
                yield first, end
            first = index
        end = index + 1
    if end >= 0:
        yield first, end
