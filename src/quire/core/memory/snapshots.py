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


class Snapshots:
    """The snapshots in a pool of slots, by their worth.

    Without one, a text that begins alike goes on from the next shallower: the tokens in between,
    times how often it has been found, are what it is worth. Worth ages, as in GreedyDual-Size with
    Frequency (Cherkasova, 1998): what is added or found counts from the worth of what went last.
    So a shallow one that a branch needs does not go for being old, and a deep one of a text that
    nobody goes on with does not stay for being long.
    """

    def __init__(self, pool: BlockPool, alive: Callable[[BlockHash], bool]) -> None:
        """alive: whether a snapshot of that name is of use: the text's blocks are there, too."""
        self._pool = pool
        self._alive = alive
        self._depths = [0] * pool.num_blocks  # of the snapshot in each slot, in blocks
        self._bases = [0] * pool.num_blocks  # of the next shallower one, 0: there is none
        self._below: list[int | None] = [None] * pool.num_blocks  # the slot of that one
        self._worth = [0.0] * pool.num_blocks
        self._age = 0.0

    def add(self, slot: int, names: Sequence[BlockHash], depth: int, known: int) -> bool:
        """The state of a text's first ``depth`` blocks; False: it is there already.

        known: blocks of a shallower one that there may still be, and none in between.
        """
        pool = self._pool
        if pool.find(names[depth - 1]) is not None:
            return False
        pool.publish(slot, names[depth - 1])
        base = min(known, depth - 1)
        while base and pool.find(names[base - 1]) is None:
            base -= 1
        self._depths[slot], self._bases[slot] = depth, base
        self._below[slot] = pool.find(names[base - 1]) if base else None
        self.found(slot)
        return True

    def found(self, slot: int) -> None:
        """A text has gone on from it."""
        covered = self._depths[slot] - self._bases[slot]
        self._worth[slot] = self._age + covered * (1 + self._pool.times_found[slot])

    def forget(self, slot: int) -> None:
        """Before it goes: those above it cover its tokens, too."""
        if self._pool.content(slot) is None:
            return
        for other, below in enumerate(self._below):
            if below == slot:
                gained = self._bases[other] - self._bases[slot]
                self._bases[other], self._below[other] = self._bases[slot], self._below[slot]
                self._worth[other] += gained * (1 + self._pool.times_found[other])
        self._below[slot] = None

    def take(self) -> int:
        """A free slot, that of the snapshot of least worth if none is blank."""
        if self._pool.num_free == self._pool.num_cached:
            self._evict(self._least())
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
        least = self._least()
        if self._value(least) > self._value(slot):
            return False
        self._evict(least)
        return True

    def _evict(self, slot: int) -> None:
        self._age = max(self._age, self._value(slot))
        self.forget(slot)
        self._pool.evict(slot)

    def _least(self) -> int:
        return min(self._pool.cached_blocks(), key=self._value)

    def _value(self, slot: int) -> float:
        name = self._pool.content(slot)
        return self._worth[slot] if name is not None and self._alive(name) else -1.0
