"""A place beyond the pool for blocks of integers, which forgets some and is full at times."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from quire.core.memory import BlockHash, BlockMove, Content


class FakeSource:
    """See ``BlockSource``. It says that it has what it has forgotten, until it is asked for it.

    And of what it has lost, for ever.
    """

    def __init__(self, seed: int, forgets: float) -> None:
        self._rng = random.Random(seed)
        self._forgets = forgets
        self._kept: dict[BlockHash, dict[int, tuple[Content, list[int]]]] = {}
        self._lost: set[BlockHash] = set()
        self.fetched = self.stored = 0

    def has(self, name: BlockHash) -> bool:
        return name in self._kept

    def used(self, names: Iterable[BlockHash]) -> None:
        pass

    def clear(self) -> None:
        self._kept.clear()

    def room(self) -> int:
        return 3 if len(self._kept) % 5 else 1

    def read(self, content: Content, kv_group: int, buffers: Sequence[memoryview]) -> None:
        raise NotImplementedError

    def write(self, content: Content, parts: Sequence[bytes]) -> None:
        raise NotImplementedError

    def lose_all_of(self, other: FakeSource) -> None:
        """Say for ever that it has what the other one has, and give none of it."""
        self._kept |= other._kept
        self._lost.update(self._kept)

    def keep(self, move: BlockMove, keys: Sequence[int]) -> None:
        assert move.content is not None
        kept = self._kept.setdefault(move.content.name, {})
        assert kept.get(move.kv_group, (None, list(keys)))[1] == list(keys), "a name is a content"
        kept[move.kv_group] = (move.content, list(keys))
        self.stored += 1

    def find(self, move: BlockMove) -> list[int] | None:
        """Of a block that can be fetched; None: it is gone."""
        assert move.content is not None
        name = move.content.name
        if self._rng.random() < self._forgets / 4:
            self._lost.add(name)
        if name in self._lost:
            return None
        if self._rng.random() < self._forgets:
            self._kept.pop(name, None)
        kept = self._kept.get(name, {}).get(move.kv_group)
        if kept is None:
            return None
        assert kept[0] == move.content, "asked for by its name and its tokens"
        self.fetched += 1
        return list(kept[1])
