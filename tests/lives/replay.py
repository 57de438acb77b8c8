"""The names that can be found in each KV group, by what block events have told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quire.blocks.events.events import AllBlocksCleared, BlockEvent, BlocksRemoved, BlocksStored
from quire.core.memory import hash_blocks, root_hash


class Replay:
    """The names that can be found in each KV group, by what has been told."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.found: set[tuple[int, bytes]] = set()
        self.counts: Counter[str] = Counter()

    def take(self, events: Sequence[BlockEvent]) -> None:
        for event in events:
            self.counts[type(event).__name__] += 1
            if isinstance(event, AllBlocksCleared):
                self.found.clear()
                continue
            named = {(event.kv_group, name) for name in event.names}
            assert len(named) == len(event.names) > 0
            if isinstance(event, BlocksRemoved):
                assert named <= self.found, "only what was there can go"
                self.found -= named
            else:
                assert named.isdisjoint(self.found), "each is told once"
                self.found |= named
                self._check_tokens(event)

    def _check_tokens(self, event: BlocksStored) -> None:
        adapter = b"" if event.adapter is None else event.adapter.fingerprint
        parent = event.parent or root_hash(event.cache_salt, adapter)
        names = hash_blocks(parent, event.token_ids, self._block_size)
        assert names == list(event.names), "these tokens, after that block"
