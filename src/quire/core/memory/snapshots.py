"""Which states of texts are worth their slots: what would have to be computed without them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from quire.core.memory.blocks import BlockHash
from quire.core.memory.pool import BlockPool


class SnapshotPlaces(NamedTuple):
    """Where snapshots of a prompt are left, on the way through it: figures in tokens.

    every: tokens between two, while a long prompt is read.
    decoding: tokens between two, while it is answered.
    """

    every: int
    block_size: int
    decoding: int

    def of(self, num_tokens: int, cached: int, known: int, marks: Iterable[int] = ()) -> list[int]:
        """For a prompt of ``num_tokens``, of which ``cached`` have been found.

        known: tokens whose blocks are here. Others have left them there, and more may: so the end
            of these is where the next one can go on from.
        marks: tokens of beginnings that the caller says come again.
        """
        size = self.block_size
        last = (num_tokens - 1) // size * size  # a prompt that begins alike computes a token
        places = {last, known // size * size}
        every = max(size, self.every // size * size)
        places.update(range((cached // every + 1) * every, last, every))
        places.update(mark // size * size for mark in marks)
        if not known:  # whoever is the first to leave it there finds half of it, or more
            places |= {every // part // size * size for part in (*_EARLY, *_IDLE)}
        return sorted(place for place in places if cached < place < num_tokens)

    def in_turn(self, places: Iterable[int]) -> list[tuple[int, bool]]:
        """In the order in which they are left: what early ones are worth depends on deeper ones.
        And whether a place has only what is idle.
        """
        early, idle = (
            {self.every // part // self.block_size * self.block_size for part in parts}
            for parts in (_EARLY, _IDLE)
        )
        both = early | idle
        return [(one, one in idle) for one in sorted(places, key=lambda place: place in both)]

    def most_drafts(self, num_tokens: int) -> int:
        """After a step's ``num_tokens``: no more, so that a step ends where one is taken."""
        return self.decoding - 1 - num_tokens % self.decoding


_EARLY, _IDLE = (2, 4), (8, 16, 32)
"""Parts of ``every`` after which a snapshot is left of a prompt that begins like none. The latter
save so little that they have only what is idle."""
_GUESS = 0.01
"""The chance that a text parts there, as long as none has and there is a deeper one."""
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
_COMPARED = 256
"""Snapshots of which the one of least worth goes: those that nobody has found for longest. A pool
may have very many of them."""
_FAMILIES = 64
"""Texts that are remembered by their beginning, for each snapshot; and as many snapshots' more."""

_REMEMBERED = 4
"""Snapshots that are gone of which it is known how many texts have parted there, for each slot."""


class _Family:
    """The texts that begin with the same block: how often they come, and what they go on from."""

    __slots__ = ("deepest", "found", "gap", "last", "roots", "texts")

    def __init__(self, now: int) -> None:
        self.texts, self.last = 0, now
        self.gap = _UNKNOWN  # texts of others between two of these
        self.found = 0  # that have found a snapshot
        self.deepest = 0  # and it was the deepest
        self.roots: dict[_Snapshot, None] = {}  # of which none has a shallower one

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


class _Snapshot:
    """The state of a text's first ``depth`` blocks."""

    __slots__ = ("above", "below", "depth", "family", "names", "parted", "used")

    def __init__(self, names: Sequence[BlockHash], depth: int, family: _Family) -> None:
        self.names, self.depth, self.family = names, depth, family
        self.below: _Snapshot | None = None  # the next shallower one
        self.above: dict[_Snapshot, None] = {}  # those for which it is that one
        self.parted = 0  # texts that have left there what others said
        self.used = family.texts  # texts of the family that had come when it was used last

    def stand_on(self, below: _Snapshot | None) -> None:
        self.leave()
        self.below = below
        self.beside[self] = None

    def leave(self) -> None:
        self.beside.pop(self, None)

    @property
    def beside(self) -> dict[_Snapshot, None]:
        """Those that stand on the same one, itself included."""
        return self.family.roots if self.below is None else self.below.above

    def parts(self, depth: int, own: Sequence[BlockHash]) -> bool:
        """Whether its text has that beginning of a text, and goes on otherwise."""
        there = len(self.names) > depth and self.names[depth - 1] == own[depth - 1]
        return there and self.names[depth : depth + 1] != own[depth : depth + 1]


class Snapshots:
    """The snapshots in a pool of slots, by their worth.

    Without one, a text that begins alike goes on from the next shallower: the tokens in between,
    times the chance that such a text comes soon, are what it is worth. How soon is learnt from the
    texts that begin with the same block. The chance falls with those that have come since it was
    used. It is good for the deepest of a text, where such texts go on from there; for one that
    others stand above it rises with the texts that have parted there. So a shallow one that
    branches need does not go for being old, nor does a long talk keep all that its turns have left.
    How many have parted where is known for a while after it has gone: where texts come back to a
    document that was displaced, what they leave there is worth what it was.
    """

    def __init__(self, pool: BlockPool, alive: Callable[[BlockHash], bool], every: int = 0) -> None:
        """alive: whether a snapshot of that name is of use: the text's blocks are there, too.
        every: blocks between two, while a long prompt is read.
        """
        self._pool = pool
        self._every = every
        pool.ranking = self
        self._alive = alive
        self._by_slot: dict[int, _Snapshot] = {}
        self._families: dict[BlockHash, _Family] = {}
        self._parted: OrderedDict[BlockHash, int] = OrderedDict()  # of those that are gone
        self._texts = 0

    def text_comes(self, first: BlockHash) -> None:
        """One more, whose first block has that name."""
        self._texts += 1
        self._family_of(first).text_comes(self._texts)

    def _family_of(self, first: BlockHash) -> _Family:
        family = self._families.get(first)
        if family is None:
            if len(self._families) > _FAMILIES * (len(self._by_slot) + _FAMILIES):
                self._families = {one.names[0]: one.family for one in self._by_slot.values()}
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
        own = self._by_slot[slot] = self._taken(names, depth, parted)
        pool.publish(slot, name)
        self._parted.pop(name, None)
        own.beside[own] = None
        for one in [*own.above]:
            one.stand_on(own)
        return True

    def _taken(self, names: Sequence[BlockHash], depth: int, parted: bool) -> _Snapshot:
        """What ``add`` keeps; nothing has changed yet."""
        pool, name = self._pool, names[depth - 1]
        base = depth - 1
        while base and pool.find(names[base - 1]) is None:
            base -= 1
        found = pool.find(names[base - 1]) if base else None
        own = _Snapshot(names, depth, self._family_of(names[0]))
        own.below = None if found is None else self._by_slot[found]
        above = (one for one in own.beside if one.depth > depth and one.names[depth - 1] == name)
        own.above = dict.fromkeys(above)
        own.parted = self._parted.get(name, 0) + (parted and self._parts(own))
        return own

    def admits(
        self, names: Sequence[BlockHash], depth: int, *, parted: bool, idle: bool = False
    ) -> bool:
        """Whether there is a slot for one more, that is not there already.

        Not where all others that may go are worth more. How many have parted there is known then,
        too.

        idle: nor where one would have to go.
        """
        if self._pool.find(names[depth - 1]) is not None or not self._pool.num_free:
            return False
        evictable = self._pool.in_the_way()
        if evictable is None:
            return True
        if idle:
            return False
        least, own = self.least(evictable), self._taken(names, depth, parted)
        if least is not None and self._worth(least) <= self._worth_of(own):
            return True
        self._remember(own)
        return False

    def _parts(self, own: _Snapshot) -> bool:
        """Whether another text goes on otherwise after it. Where none is known, the text may as
        well go on from where that ended.

        Another that is there, too, has a snapshot beside it, or one of those below it.
        """
        if any(one.parts(own.depth, own.names) for one in own.beside):
            return True
        below = own.below
        while below is not None:
            if below.parts(own.depth, own.names):
                return True
            below = below.below
        return False

    def found(self, slot: int, *, parts: bool = True) -> None:
        """The text that came last goes on from it.

        parts: whether it leaves there what others said; else it leaves a snapshot further on.
        """
        one = self._by_slot[slot]
        family, is_deepest = one.family, not one.above
        one.used = family.texts
        one.parted += parts and not is_deepest
        family.found += 1
        family.deepest += is_deepest

    def forget(self, block: int) -> None:
        """It goes: those above it cover its tokens, too."""
        one = self._by_slot.pop(block, None)
        if one is not None:
            for other in [*one.above]:
                other.stand_on(one.below)
            one.leave()
            self._remember(one)

    def _remember(self, gone: _Snapshot) -> None:
        if gone.parted:
            self._parted[gone.names[gone.depth - 1]] = gone.parted
            if len(self._parted) > _REMEMBERED * self._pool.num_blocks:
                self._parted.popitem(last=False)

    def clear(self) -> None:
        """All of them are gone."""
        for one in self._by_slot.values():
            one.family.roots.clear()
        self._by_slot.clear()
        self._parted.clear()

    def make_room(self, slot: int) -> bool:
        """Whether there is a slot for who goes on from a snapshot, so that it stays.

        Not where all others that may go are worth more.
        """
        evictable = self._pool.in_the_way(slot)
        if evictable is None:
            return True
        least = self.least(evictable)
        return least is not None and self._worth(least) <= self._worth(slot)

    def least(self, blocks: Iterable[int]) -> int | None:
        return min(islice(blocks, _COMPARED), key=self._worth, default=None)

    def _worth(self, slot: int) -> float:
        one = self._by_slot.get(slot)
        return -1.0 if one is None else self._worth_of(one)

    def _worth_of(self, one: _Snapshot) -> float:
        if not self._alive(one.names[one.depth - 1]):
            return -1.0
        family, below = one.family, one.below
        while below is not None and self._is_guess(below):
            below = below.below
        chance = _GUESS if self._is_guess(one) else _FIRST + one.parted
        if not one.above:
            chance += family.goes_on
        covered = one.depth + _ALL if below is None else one.depth - below.depth
        unused = family.texts - one.used
        fading: float = (1 + unused) ** _UNUSED
        return covered * chance / (fading * family.wait(self._texts))

    def _is_guess(self, one: _Snapshot) -> bool:
        """Whether it was left early in a text, where none has parted yet and this one went on."""
        return bool(one.above) and not one.parted and one.depth < self._every
