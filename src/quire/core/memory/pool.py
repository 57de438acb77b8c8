"""Physical blocks: who counts on them, which are free, and what the free ones still hold."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from quire.core.memory.blocks import BlockHash
from quire.core.memory.keeping import KeptBlocks


class ContentWatcher(Protocol):
    """Learns of each content when it can be found, and when it no longer can."""

    def stored(self, kv_group: int, content: BlockHash) -> None: ...

    def removed(self, kv_group: int, content: BlockHash) -> None: ...

    def cleared(self) -> None:
        """Nothing can be found, in any KV group."""


class BlankBlocks(Protocol):
    """Free blocks without a content, in the order in which they are taken from the end."""

    def append(self, block: int, /) -> None: ...

    def pop(self) -> int: ...

    def __len__(self) -> int: ...


class Ranking(Protocol):
    """What contents of a pool are worth. It learns of each that goes."""

    def least(self, blocks: Iterable[int]) -> int | None:
        """Of these, which hold contents, the one that goes first; None: there are none."""
        ...

    def forget(self, block: int) -> None: ...

    def clear(self) -> None: ...


class Eviction(NamedTuple):
    """Of a content. short: by how many blocks the pool was too small to keep it, at most, when
    the latest taker came."""

    time: float
    taker: int  # the sequence that got the block
    short: int


class PoolNeed(NamedTuple):
    """What one verb takes of a pool: blocks, and cached ones that somebody holds again."""

    takes: int
    revived: Sequence[int] = ()

    @property
    def blocks(self) -> int:
        """Free blocks that are none afterwards."""
        return len(self.revived) + self.takes


class BlockPool:
    """``num_blocks`` blocks with reference counts and an index of their contents.

    A block is *held* while its reference count is positive. A free block is *cached* if its
    content has been published under a hash and not been overwritten since, else *blank*. Blank
    blocks are taken first; then cached ones, least recently released first, ``kept`` ones last.
    A ``ranking`` may say which of them goes first instead.

    Each block also keeps what its owners are charged: the time it is held, divided among them.

    times_found: by block, how often its content has been found in it.
    taker: the sequence for which blocks are taken now.
    touched: blocks that have been taken, shared or given up since a view last took them; None:
        there is no view that wants them.
    """

    def __init__(self, num_blocks: int, blank: BlankBlocks | None = None) -> None:
        """blank: who has the blank ones; None: a stack, of which block 0 goes first."""
        self.num_blocks = num_blocks
        self.ref_counts: list[int] = []
        self.times_found = array("I")
        self.touched: set[int] | None = None
        self.now = 0.0  # seconds; see ``KVAllocator.advance``
        self._charged = array("d")  # seconds per owner, up to _since
        self._since = array("d")
        self._hashes: dict[int, BlockHash] = {}
        self._block_of: dict[BlockHash, int] = {}
        # The latest num_blocks ones: when, for whom, and how many had been before that came.
        self._evicted: OrderedDict[BlockHash, tuple[float, int, int]] = OrderedDict()
        self._num_evicted = 0
        self._taking = (0.0, -1, 0)  # the same of those that were evicted last
        self.taker = -1
        self._blank: BlankBlocks = [] if blank is None else blank
        self._cached: OrderedDict[int, None] = OrderedDict()  # in order of release
        self.kept = KeptBlocks(num_blocks)
        self._until = self.kept.until  # empty, most often
        self.ranking: Ranking | None = None
        self._watcher: ContentWatcher | None = None
        self._kv_group = 0  # as which the watcher knows this pool

    def _reach(self, block: int, num_ids: int) -> None:
        """Keep account of one that nobody has had before, and of some after it.

        num_ids: one more than the highest number of all.
        """
        reached = len(self.ref_counts)
        more = min(num_ids, max(block + 1, 2 * reached)) - reached
        self.ref_counts += [0] * more
        for counts in (self.times_found, self._charged, self._since):
            counts.frombytes(bytes(counts.itemsize * more))

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now, blank and cached."""
        return self.num_blocks - len(self.ref_counts) + len(self._blank) + self.num_cached

    @property
    def num_cached(self) -> int:
        return len(self._cached) + len(self.kept.free)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_free

    def cached_blocks(self) -> list[int]:
        """Those that are evicted first, first."""
        return [*self._cached, *self.kept.free]

    def watch(self, watcher: ContentWatcher, kv_group: int) -> None:
        """Tell ``watcher`` from now on what can be found here."""
        self._watcher, self._kv_group = watcher, kv_group

    def take(self) -> int:
        """A free block with reference count 1, its old content forgotten.

        The caller has made sure that one is free.
        """
        block = self._blank.pop() if self._blank else self._make_blank()
        self.ref_counts[block] = 1
        self._since[block] = self.now
        self.times_found[block] = 0
        if self.touched is not None:
            self.touched.add(block)
        return block

    def in_the_way(self, block: int | None = None) -> Iterable[int] | None:
        """Cached blocks of which one goes if another is taken for what is to be cached.

        block: that whoever takes it leaves then, so that this one is cached.

        None: none has to go. Nothing at all: there is no room.
        """
        return None if self._blank or len(self.ref_counts) < self.num_blocks else self._cached

    def take_all(self, count: int) -> tuple[list[int], list[float]]:
        """``take`` as often; the blocks, and what each is ``charged`` at this moment."""
        blank, charged = self._blank, self._charged
        if not isinstance(blank, list) or len(blank) < count:
            blocks = [self.take() for _ in range(count)]
            return blocks, [charged[block] for block in blocks]
        blocks = blank[: -count - 1 : -1]
        del blank[len(blank) - count :]
        counts, since, found, now = self.ref_counts, self._since, self.times_found, self.now
        for block in blocks:
            counts[block], since[block], found[block] = 1, now, 0
        if self.touched is not None:
            self.touched.update(blocks)
        return blocks, [charged[block] for block in blocks]

    def share(self, block: int) -> None:
        """One more owner of a block that is held or cached."""
        if self.ref_counts[block] == 0 and not self.kept.share(block):
            del self._cached[block]
        self._charge(block)
        self.ref_counts[block] += 1
        if self.touched is not None:
            self.touched.add(block)

    def share_all(self, blocks: Sequence[int], *, found: bool = False) -> list[float]:
        """``share`` for each of these blocks; what each is ``charged`` at this moment.

        found: they have been, by their content.
        """
        counts, charged, since, now = self.ref_counts, self._charged, self._since, self.now
        kept = self.kept.free
        if self.touched is not None:
            self.touched.update(blocks)
        for block in blocks:
            if counts[block]:
                charged[block] += (now - since[block]) / counts[block]
            elif kept and block in kept:
                del kept[block]
            else:
                del self._cached[block]
            since[block] = now
            counts[block] += 1
            self.times_found[block] += found
        return [charged[block] for block in blocks]

    def release(self, block: int) -> bool:
        """One owner fewer; True if that was the last and the block is free now."""
        self._charge(block)
        self.ref_counts[block] -= 1
        if self.touched is not None:
            self.touched.add(block)
        if self.ref_counts[block]:
            return False
        if block not in self._hashes:
            self._blank.append(block)
        else:
            self._cache(block)
        return True

    def release_all(
        self, blocks: Iterable[int], entries: Iterable[float], charge: float
    ) -> tuple[float, list[int]]:
        """``release`` for each of these blocks, in their order.

        entries: what each was ``charged`` when this owner came.

        Returns:
            ``charge`` and what is owed for all of them; the blocks that are free now.
        """
        counts, charged, since, now = self.ref_counts, self._charged, self._since, self.now
        freed, touched = [], self.touched
        for block, entry in zip(blocks, entries, strict=True):
            owners = counts[block]
            until_now = charged[block] = charged[block] + (now - since[block]) / owners
            charge += until_now - entry
            since[block] = now
            counts[block] = owners - 1
            if touched is not None:
                touched.add(block)
            if owners == 1:
                freed.append(block)
        hashes = self._hashes
        for block in freed:
            if block not in hashes:
                self._blank.append(block)
            else:
                self._cache(block)
        return charge, freed

    def charged(self, block: int) -> float:
        """Seconds charged so far to an owner that has held ``block`` from the beginning.

        An owner pays the difference between the end and the start of its ownership.
        """
        return self._charged[block] + (self.now - self._since[block]) / self.ref_counts[block]

    def publish(self, block: int, content: BlockHash) -> None:
        """Let ``content`` be found in ``block`` from now on.

        Where another block already holds that content, the index keeps the older one: hash to
        block is one to one, so a block leaves the index exactly when it is overwritten.
        """
        if block not in self._hashes and content not in self._block_of:
            self._hashes[block] = content
            self._block_of[content] = block
            self._evicted.pop(content, None)
            if self._watcher is not None:
                self._watcher.stored(self._kv_group, content)

    def invalidate(self, block: int) -> None:
        """Forget what ``block`` holds: it was published, but could not be computed or fetched."""
        content = self._hashes.get(block)
        if content is not None:
            was_kept = self.kept.forget(block)
            self._forget(block, content)
            if was_kept or block in self._cached:
                self._cached.pop(block, None)
                self._blank.append(block)
                if self.touched is not None:
                    self.touched.add(block)

    def clear(self) -> None:
        """Forget what all blocks hold. Their owners keep them."""
        self._hashes.clear()
        self._block_of.clear()
        if self.ranking is not None:
            self.ranking.clear()
        self._cached.update(dict.fromkeys(self.kept.clear()))
        for block in reversed(self._cached):
            self._blank.append(block)
        if self.touched is not None:
            self.touched.update(self._cached)
        self._cached.clear()
        if self._watcher is not None:
            self._watcher.cleared()

    def find(self, content: BlockHash) -> int | None:
        """The block, held or cached, that holds ``content``."""
        return self._block_of.get(content)

    def content(self, block: int) -> BlockHash | None:
        """The hash under which ``block`` is published."""
        return self._hashes.get(block)

    def eviction(self, content: BlockHash) -> Eviction | None:
        """When ``content`` was evicted, if it was here not long ago."""
        found, taking = self._evicted.get(content), self._taking
        before = taking[2] if taking[1] == self.taker else self._num_evicted
        return found and Eviction(found[0], found[1], before - found[2])

    def audit(self, name: str, tables: Iterable[Iterable[int]]) -> list[str]:
        """What was wrong with the counts, by the blocks that ``tables`` hold; it no longer is."""
        owners = [0] * len(self.ref_counts)
        for blocks in tables:
            for block in blocks:
                owners[block] += 1
        wrong = sum(a != b for a, b in zip(owners, self.ref_counts, strict=True))
        held, faults = len(owners) - owners.count(0), []
        if wrong:
            faults.append(f"{wrong} {name} blocks had other reference counts than owners")
        if self.num_held != held:
            free = self.num_free + self.num_held - held
            faults.append(f"{self.num_free} {name} blocks were taken for free, {free} are")
        if faults:
            self._rebuild(owners)
        return faults

    def _rebuild(self, owners: Sequence[int]) -> None:
        """Let these be the reference counts, and all that follows from them follow.

        Contents of blocks without owners are forgotten: anything may have been written there.
        """
        if self.touched is not None:
            self.touched.update(range(len(owners)))
        for block, count in enumerate(owners):
            if self.ref_counts[block] != count:
                self._since[block] = self.now
                if not count:
                    self.invalidate(block)
        self.ref_counts = list(owners)
        free = [block for block, count in enumerate(owners) if not count]
        self.kept.clear()
        self._cached = OrderedDict.fromkeys(b for b in free if b in self._hashes)
        self._blank = [block for block in reversed(free) if block not in self._hashes]

    def _make_blank(self) -> int:
        """A free block that nobody has had, or else one whose content has been evicted, since there
        is no other that is blank.
        """
        reached = len(self.ref_counts)
        if reached < self.num_blocks:
            self._reach(reached, self.num_blocks)
            for block in reversed(range(reached, len(self.ref_counts))):
                self._blank.append(block)
            return self._blank.pop()
        if self._until:
            self._lapse(self.kept.end(self.now))
        if self._cached:
            block = self._first(self._cached)
            del self._cached[block]
        else:
            block = self.kept.oldest()
        self._evict(block)
        return block

    def _first(self, cached: Iterable[int]) -> int:
        """Which of these goes first, of which the least recently released is the first."""
        ranked = None if self.ranking is None else self.ranking.least(cached)
        return next(iter(cached)) if ranked is None else ranked

    def _cache(self, block: int) -> None:
        """Nobody holds the block any more, whose content can be found."""
        if self._until:
            self._lapse(self.kept.release(block, self.now))
        else:
            self._cached[block] = None

    def _lapse(self, blocks: Sequence[int]) -> None:
        """These free ones are kept no longer, and evicted as all others are."""
        self._cached.update(dict.fromkeys(blocks))

    def _charge(self, block: int) -> None:
        owners = self.ref_counts[block]
        if owners:
            self._charged[block] += (self.now - self._since[block]) / owners
        self._since[block] = self.now

    def _evict(self, block: int) -> None:
        content = self._hashes.get(block)
        if content is not None:
            self._forget(block, content)
            if self._taking[1] != self.taker or self._taking[0] != self.now:
                self._taking = (self.now, self.taker, self._num_evicted)
            self._evicted[content] = self._taking
            self._num_evicted += 1
            if len(self._evicted) > self.num_blocks:
                self._evicted.popitem(last=False)

    def _forget(self, block: int, content: BlockHash) -> None:
        del self._block_of[content]
        del self._hashes[block]
        if self.ranking is not None:
            self.ranking.forget(block)
        if self._watcher is not None:
            self._watcher.removed(self._kv_group, content)
