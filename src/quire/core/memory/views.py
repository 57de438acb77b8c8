"""A pool for those who look at every block and change none."""

from __future__ import annotations

from typing import Protocol

from quire.core.memory.window import Window


class PoolView(Protocol):
    """The device blocks of one KV group."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_held(self) -> int: ...

    @property
    def num_cached(self) -> int: ...

    @property
    def window(self) -> Window | None: ...

    def has_tokens(self, block: int) -> bool:
        """Whether a slot of a held block holds a token, or will once the step under way is done."""
        ...

    def is_cached(self, block: int) -> bool:
        """Of a free block: whether its content can be found."""
        ...

    def times_found(self, block: int) -> int: ...

    def num_holders(self, block: int) -> int:
        """Sequences that hold it."""
        ...

    def watch(self) -> None:
        """Keep track from now on of blocks that change hands."""
        ...

    def unwatch(self) -> None: ...

    def take_touched(self) -> set[int]:
        """Those that have been taken, shared, given up or forgotten since the last call.

        Beside them only blocks change that block tables show: see ``KVAllocator.table``.
        """
        ...
