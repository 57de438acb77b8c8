"""Which states of texts are worth their slots: what would have to be computed without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire.core.memory.blocks import BlockHash
from quire.core.memory.pool import BlockPool


class SnapshotStops(NamedTuple):
    """Where chunks of a prompt end, so that a snapshot can be taken: figures in tokens.

    every: after so many, while a long prompt is read.
    """

    every: int
    block_size: int

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


_FIRST = 0.2
"""The chance that a text parts where none has, beside that of one that goes on where it ended."""


class Snapshots:
    """The snapshots in a pool of slots, by their worth.

    Without one, a text that begins alike goes on from the next shallower: the tokens in between,
    times the chance that such a text comes, are what it is worth. The chance falls with the number
    of texts that have come since it was used, and rises with how many have gone on from it: from
    one whose own text has ended, the text itself may go on; from one in the midst of a text, only
    another, for which it must have parted from this one here. So a shallow one where texts part
    does not go for being old, nor does a long text's last one stay for being deep.
    """

    def __init__(self, pool: BlockPool, alive: Callable[[BlockHash], bool]) -> None:
        """alive: whether a snapshot of that name is of use: the text's blocks are there, too."""
        self._pool = pool
        self._alive = alive
        self._depths = [0] * pool.num_blocks  # of the snapshot in each slot, in blocks
        self._bases = [0] * pool.num_blocks  # of the next shallower one, 0: there is none
        self._below: list[int | None] = [None] * pool.num_blocks  # the slot of that one
        self._names: list[Sequence[BlockHash]] = [()] * pool.num_blocks  # of the text it is of
        self._passed = [0] * pool.num_blocks  # texts that have gone on beyond it unasked
        self._used = [0] * pool.num_blocks  # texts that had come when it was used last
        self._texts = 0

    def text_comes(self) -> None:
        """One more, of which what is not used now has nothing."""
        self._texts += 1

    def add(self, slot: int, names: Sequence[BlockHash], depth: int, passed: int) -> bool:
        """The state of a text's first ``depth`` blocks; False: it is there already.

        passed: texts that are known to go on from there: its own, unless it ends about here, and
            one that has parted from it.
        """
        pool, name = self._pool, names[depth - 1]
        if pool.find(name) is not None:
            return False
        pool.publish(slot, name)
        base = depth - 1
        while base and pool.find(names[base - 1]) is None:
            base -= 1
        self._depths[slot], self._bases[slot], self._passed[slot] = depth, base, passed
        self._below[slot] = pool.find(names[base - 1]) if base else None
        for other, deep in enumerate(self._depths):  # it may stand between two others
            if deep > depth > self._bases[other] and self._names[other][depth - 1] == name:
                self._bases[other], self._below[other] = depth, slot
        self._names[slot] = names
        self.found(slot)
        return True

    def found(self, slot: int) -> None:
        """A text goes on from it."""
        self._used[slot] = self._texts

    def forget(self, slot: int) -> None:
        """Before it goes: those above it cover its tokens, too."""
        for other, below in enumerate(self._below):
            if below == slot:
                self._bases[other], self._below[other] = self._bases[slot], self._below[slot]
        self._depths[slot], self._below[slot], self._names[slot] = 0, None, ()

    def clear(self) -> None:
        """All of them are gone."""
        for slot in range(self._pool.num_blocks):
            self._depths[slot], self._below[slot], self._names[slot] = 0, None, ()

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
        others = max(0, self._passed[slot] + self._pool.times_found[slot] - 1)
        chance = _FIRST + others + (slot not in self._below)
        covered = self._depths[slot] - self._bases[slot]
        return covered * chance / (1 + self._texts - self._used[slot])
