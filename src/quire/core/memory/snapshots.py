"""Which states of texts are worth their slots: what would have to be computed without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire.core.memory.blocks import BlockHash
from quire.core.memory.pool import BlockPool


class SnapshotStops(NamedTuple):
    """Where chunks of a prompt end, so that a snapshot can be taken: figures in tokens.

    every: after so many, while a long prompt is read.
    decoding: after so many, while it is answered.
    """

    every: int
    block_size: int
    decoding: int

    def of(self, num_tokens: int, cached: int, known: int) -> list[int]:
        """For a prompt of ``num_tokens``, of which ``cached`` have been found.

        known: tokens whose blocks are here. Others have left them there, and more may: so the end
            of these is where the next one can go on from.
        """
        size = self.block_size
        last = (num_tokens - 1) // size * size  # a prompt that begins alike computes a token
        stops = {last, known // size * size}
        every = max(size, self.every // size * size)
        stops.update(range((cached // every + 1) * every, last, every))
        return sorted(stop for stop in stops if cached < stop < num_tokens)

    def most_drafts(self, num_tokens: int) -> int:
        """After a step's ``num_tokens``: no more, so that a step ends where one is taken."""
        return self.decoding - 1 - num_tokens % self.decoding


_FIRST = 0.2
"""The chance that a text parts where none has, beside that of one that goes on from its deepest."""
_UNKNOWN = 10.0
"""Texts until a second one begins like one that is new."""
_LATEST = 0.3
"""The share of the latest in what is between two texts that begin alike."""
_UNUSED = 1.2
"""How fast a snapshot's worth falls with such texts that do not use it: a power of their number."""
_ALL = 80
"""Blocks that finding nothing at all counts like, beside those that are not found."""


class _Family:
    """The texts that begin with the same block: how often they come, and what they go on from."""

    __slots__ = ("deepest", "found", "gap", "last", "texts")

    def __init__(self, now: int) -> None:
        self.texts, self.last = 0, now
        self.gap = _UNKNOWN  # texts of others between two of these
        self.found = 0  # that have found a snapshot
        self.deepest = 0  # and it was the deepest

    def text_comes(self, now: int) -> None:
        if self.texts:
            latest = now - self.last
            self.gap = latest if self.texts == 1 else self.gap + _LATEST * (latest - self.gap)
        self.texts, self.last = self.texts + 1, now

    def wait(self, now: int) -> float:
        """Texts until the next one that begins so."""
        return 1 + max(self.gap, now - self.last)

    @property
    def goes_on(self) -> float:
        """The chance that it goes on from the deepest."""
        return (self.deepest + 1) / (self.found + 1)


class Snapshots:
    """The snapshots in a pool of slots, by their worth.

    Without one, a text that begins alike goes on from the next shallower: the tokens in between,
    times the chance that such a text comes soon, are what it is worth. How soon is learnt from the
    texts that begin with the same block. The chance falls with those that have come since it was
    used. It is good for the deepest of a text, where such texts go on from there; for one that
    others stand above it rises with the texts that have parted there. So a shallow one that
    branches need does not go for being old, nor does a long talk keep all that its turns have left.
    """

    def __init__(self, pool: BlockPool, alive: Callable[[BlockHash], bool]) -> None:
        """alive: whether a snapshot of that name is of use: the text's blocks are there, too."""
        self._pool = pool
        self._alive = alive
        self._depths = [0] * pool.num_blocks  # of the snapshot in each slot, in blocks
        self._bases = [0] * pool.num_blocks  # of the next shallower one, 0: there is none
        self._below: list[int | None] = [None] * pool.num_blocks  # the slot of that one
        self._above = [0] * pool.num_blocks  # snapshots for which it is that one
        self._names: list[Sequence[BlockHash]] = [()] * pool.num_blocks  # of the text it is of
        self._parted = [0] * pool.num_blocks  # texts that have left there what others said
        self._family = [_Family(0)] * pool.num_blocks  # of that text
        self._used = [0] * pool.num_blocks  # texts of it that had come when it was used last
        self._families: dict[BlockHash, _Family] = {}
        self._texts = 0

    def text_comes(self, first: BlockHash) -> None:
        """One more, whose first block has that name."""
        self._texts += 1
        self._family_of(first).text_comes(self._texts)

    def _family_of(self, first: BlockHash) -> _Family:
        family = self._families.get(first)
        if family is None:
            if len(self._families) > 8 * self._pool.num_blocks:  # all but those of snapshots
                used = {names[0] for names in self._names if names}
                self._families = {name: self._families[name] for name in used}
            family = self._families[first] = _Family(self._texts)
        return family

    def add(
        self, slot: int, names: Sequence[BlockHash], depth: int, *, parted: bool = False
    ) -> bool:
        """The state of a text's first ``depth`` blocks; False: it is there already.

        parted: whether others have computed what it stands for, and no more of this text.
        """
        pool, name = self._pool, names[depth - 1]
        if pool.find(name) is not None:
            return False
        pool.publish(slot, name)
        base = depth - 1
        while base and pool.find(names[base - 1]) is None:
            base -= 1
        self._depths[slot], self._bases[slot] = depth, base
        self._parted[slot] = int(parted and self._parts(names, depth))
        self._stand_on(slot, pool.find(names[base - 1]) if base else None)
        for other, deep in enumerate(self._depths):  # it may stand between two others
            if deep > depth > self._bases[other] and self._names[other][depth - 1] == name:
                self._bases[other] = depth
                self._stand_on(other, slot)
        self._names[slot], family = names, self._family_of(names[0])
        self._family[slot], self._used[slot] = family, family.texts
        return True

    def _parts(self, names: Sequence[BlockHash], depth: int) -> bool:
        """Whether another text goes on otherwise after ``depth`` blocks. Where none is known, the
        text may as well go on from where that ended.
        """
        name, own = names[depth - 1], names[depth : depth + 1]
        return any(
            len(other) > depth and other[depth - 1] == name and other[depth : depth + 1] != own
            for other in self._names
        )

    def found(self, slot: int) -> None:
        """The text that came last goes on from it."""
        family, is_deepest = self._family[slot], not self._above[slot]
        self._used[slot] = family.texts
        self._parted[slot] += not is_deepest
        family.found += 1
        family.deepest += is_deepest

    def forget(self, slot: int) -> None:
        """Before it goes: those above it cover its tokens, too."""
        for other, below in enumerate(self._below):
            if below == slot:
                self._bases[other] = self._bases[slot]
                self._stand_on(other, self._below[slot])
        self._stand_on(slot, None)
        self._depths[slot], self._names[slot] = 0, ()

    def clear(self) -> None:
        """All of them are gone."""
        for slot in range(self._pool.num_blocks):
            self._stand_on(slot, None)
            self._depths[slot], self._names[slot] = 0, ()

    def _stand_on(self, slot: int, below: int | None) -> None:
        before, self._below[slot] = self._below[slot], below
        if before is not None:
            self._above[before] -= 1
        if below is not None:
            self._above[below] += 1

    def take(self) -> int:
        """A free slot, that of the snapshot of least worth if none is blank."""
        if self._pool.num_free == self._pool.num_cached:
            self._evict(min(self._pool.cached_blocks(), key=self._worth))
        return self._pool.take()

    def make_room(self, slot: int) -> bool:
        """Whether there is a slot for who goes on from a snapshot, so that it stays.

        Not where all other snapshots are worth more.
        """
        pool = self._pool
        if pool.num_free > pool.num_cached:
            return True
        if not pool.num_free:
            return False
        least = min(pool.cached_blocks(), key=self._worth)
        if self._worth(least) > self._worth(slot):
            return False
        self._evict(least)
        return True

    def _evict(self, slot: int) -> None:
        self.forget(slot)
        self._pool.evict(slot)

    def _worth(self, slot: int) -> float:
        name = self._pool.content(slot)
        if name is None or not self._alive(name):
            return -1.0
        family, deepest = self._family[slot], not self._above[slot]
        chance = _FIRST + self._parted[slot] + deepest * family.goes_on
        base = self._bases[slot]
        covered = self._depths[slot] - base if base else self._depths[slot] + _ALL
        unused = family.texts - self._used[slot]
        fading: float = (1 + unused) ** _UNUSED
        return covered * chance / (fading * family.wait(self._texts))
