"""Changes of what the prefix cache holds, for those who route requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.core.memory import BlockHash
from quire.core.protocol.request import Adapter


class BlocksStored(NamedTuple):
    """Full blocks of one text, one after the other, that can be found from now on."""

    kv_group: int
    names: Sequence[BlockHash]
    parent: BlockHash | None  # the block before; None: they begin the text
    token_ids: Sequence[int]
    adapter: Adapter | None
    cache_salt: str


class BlocksRemoved(NamedTuple):
    """Blocks that can no longer be found."""

    kv_group: int
    names: Sequence[BlockHash]


class AllBlocksCleared(NamedTuple):
    """Nothing can be found any more, in any KV group."""


BlockEvent = BlocksStored | BlocksRemoved | AllBlocksCleared
