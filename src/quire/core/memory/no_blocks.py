"""The allocator of a model that keeps no keys and values: an encoder, which reads texts whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from quire.core.memory.blocks import BlockHash, BlockMove
from quire.core.memory.pool import ContentWatcher
from quire.core.memory.values import BlockTable, Demand, Fit, Usage, When
from quire.core.memory.views import PoolView


class NoBlocks:
    """There is no pool. Everybody has room, holds nothing, and nothing is ever found or moved.

    What bounds such a model is the tokens of a step, which are the scheduler's. A sequence has one
    step, so that none is forked, drafted for, swapped or cut.
    """

    num_free_blocks = 0

    def __init__(self, block_size: int) -> None:
        """block_size: in which lengths are counted where others have blocks."""
        self.block_size = block_size

    def advance(self, now: float) -> None: ...

    def fit(self, demand: Demand) -> Fit:
        return Fit(When.NOW, 0, 0, 0)

    def admit(self, seq_id: int, demand: Demand) -> int | None:
        return 0

    def take_fetches(self) -> list[BlockMove]:
        return []

    def locate(self, content: BlockHash) -> Sequence[int] | None:
        return None

    def blocks_to_append(self, new_tokens: Mapping[int, int]) -> int:
        return 0

    def append(self, new_tokens: Mapping[int, int]) -> list[BlockMove] | None:
        return []

    def draft(self, seq_id: int, count: int) -> bool:
        return False

    def trim(self, seq_id: int, num_tokens: int) -> None: ...

    def fork(self, parent_id: int, child_id: int) -> list[BlockMove]:
        return []

    def commit(self, seq_id: int, block_hashes: Sequence[BlockHash], count: int) -> None: ...

    def settle(self) -> None: ...

    def free(self, seq_id: int, *, invalid: bool = False) -> float:
        return 0.0

    def invalidate(self, block: int, kv_group: int = 0) -> None: ...

    def watch(self, watcher: ContentWatcher) -> None: ...

    def clear_contents(self) -> None: ...

    def cached_blocks(self, kv_group: int = 0) -> Sequence[int]:
        return ()

    def charge(self, seq_id: int) -> float:
        return 0.0

    def swap_out(self, seq_ids: Iterable[int]) -> list[BlockMove] | None:
        return None

    def swap_in(self, seq_ids: Iterable[int], headroom: int = 0) -> list[BlockMove] | None:
        return None

    def table(self, seq_id: int) -> BlockTable:
        return BlockTable((), self.block_size)

    def num_tokens(self, seq_id: int) -> int:
        return 0

    def blocks_held(self, seq_ids: Sequence[int]) -> tuple[int, int]:
        return 0, 0

    def usage(self) -> Usage:
        return Usage(0, 0, 0, 0, 0, 0)

    def views(self) -> tuple[PoolView, ...]:
        return ()
