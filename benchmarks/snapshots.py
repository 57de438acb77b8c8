"""Which states are kept of a hybrid model's texts: tokens that are found again, without a model.

    python benchmarks/snapshots.py [--state 3000] [--pool 1000000] [--seed 0]

A state takes as much memory as ``--state`` tokens' keys and values, and a tenth of a pool of
``--pool`` tokens is for snapshots beside it. Shares are of what attention's blocks have. Beside
Quire: an oracle that knows which texts come, and has no more snapshots; who keeps only the last
block's end of each prompt (vLLM's align mode); and who keeps the same snapshots as Quire but lets
go of the least recently used. On pages: Quire, where blocks and states share as much memory, and
snapshots have what is idle; of what the blocks have that share with nobody.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from quire.core.memory import (
    Demand,
    KeptState,
    LayeredAllocator,
    PagedAllocator,
    SharedPages,
    SharedPool,
    SnapshotPlaces,
    StateAllocator,
    hash_blocks,
)
from quire.core.memory.pool import BlockPool
from quire.core.memory.snapshots import Snapshots, _Snapshot

SIZE = 16
RUNNING = 8  # requests at once

Text = list[int]


class Ask(NamedTuple):
    """A prompt, and tokens that are generated after it."""

    prompt: Text
    answer: Text


def words(rng: random.Random, low: int, high: int) -> Text:
    return [rng.randrange(1 << 30) for _ in range(rng.randint(low, high))]


def chats(rng: random.Random, users: int = 24, turns: int = 10) -> Iterator[Ask]:
    """Each goes on from all that was said, in any order among the users."""
    histories: list[Text] = [words(rng, 200, 400) for _ in range(users)]
    order = [user for user in range(users) for _ in range(turns)]
    # Users come and go: few talk at one time.
    order.sort(key=lambda user: user + rng.random() * 8)
    for user in order:
        histories[user] = [*histories[user], *words(rng, 20, 200)]
        ask = Ask(histories[user], words(rng, 50, 400))
        histories[user] = [*ask.prompt, *ask.answer]
        yield ask


def agents(rng: random.Random, count: int = 40) -> Iterator[Ask]:
    """Share up to 20,000 tokens, part at different depths, and take some steps each."""
    shared = words(rng, 20_000, 20_000)
    depths = [rng.randint(2_000, 20_000) for _ in range(6)] + [20_000]
    for _ in range(count):
        text = [*shared[: rng.choice(depths)], *words(rng, 200, 1500)]
        for _ in range(rng.randint(1, 4)):
            ask = Ask(text, words(rng, 50, 200))
            yield ask
            text = [*ask.prompt, *ask.answer, *words(rng, 50, 600)]


def documents(rng: random.Random, count: int = 150) -> Iterator[Ask]:
    """A shared head, then one of some documents, then a question."""
    head = words(rng, 1200, 1200)
    every = [words(rng, 1000, 6000) for _ in range(25)]
    for _ in range(count):
        document = every[min(int(rng.expovariate(0.25)), 24)]
        yield Ask([*head, *document, *words(rng, 20, 100)], words(rng, 50, 200))


def forks(rng: random.Random, count: int = 120) -> Iterator[Ask]:
    """Somebody goes back to the middle of a long talk, and goes on otherwise."""
    turns = [words(rng, 200, 900) for _ in range(16)]
    for _ in range(count):
        here = rng.randint(2, len(turns))
        turns = [*turns[:here], words(rng, 100, 600)]
        while len(turns) < 10:
            turns.append(words(rng, 200, 900))
        yield Ask([token for turn in turns for token in turn], words(rng, 50, 200))


def unique_tails(rng: random.Random, count: int = 64) -> Iterator[Ask]:
    """The last block's end of each falls into what is its own (vLLM's issue 45238)."""
    shared = words(rng, 860, 860)
    for _ in range(count):
        yield Ask([*shared, *words(rng, 100, 130)], words(rng, 8, 8))


def shallow_branches(rng: random.Random, count: int = 12) -> Iterator[Ask]:
    """Long texts in depth, and after each, branches near the root (SGLang's issue 38000)."""
    root = words(rng, 1500, 1500)
    for _ in range(count):
        text = [*root, *words(rng, 100, 200)]
        for _ in range(12):
            text = [*text, *words(rng, 400, 1200)]
            yield Ask(text, words(rng, 20, 60))
        for _ in range(4):
            yield Ask([*root, *words(rng, 100, 300)], words(rng, 20, 60))


def short_prompts(rng: random.Random, count: int = 300) -> Iterator[Ask]:
    """Of some applications, each with a head of its own before a short question; and others."""
    heads = [words(rng, 30, 900) for _ in range(25)]
    for _ in range(count):
        if rng.random() < 0.2:
            yield Ask(words(rng, 60, 900), words(rng, 20, 200))
        else:
            head = heads[min(int(rng.expovariate(0.15)), 24)]
            yield Ask([*head, *words(rng, 20, 300)], words(rng, 20, 200))


def mixed(rng: random.Random) -> Iterator[Ask]:
    """All of those before it at once."""
    sources = [make(rng) for make in itertools.takewhile(lambda one: one is not mixed, _MAKERS)]
    while sources:
        source = rng.choice(sources)
        ask = next(source, None)
        if ask is None:
            sources.remove(source)
        else:
            yield ask


WORKLOADS: dict[str, Callable[[random.Random], Iterator[Ask]]] = {
    "chats of ten turns": chats,
    "agents": agents,
    "documents": documents,
    "forks in the middle": forks,
    "unique tails": unique_tails,
    "shallow branches": shallow_branches,
    "all at once": mixed,
    "short prompts": short_prompts,
}
_MAKERS = WORKLOADS.values()


class Texts:
    """All that is asked, and by the names of blocks, when."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        self.asks = asks
        self.names = [hash_blocks(b"", ask.prompt + ask.answer, SIZE) for ask in asks]
        self._comes: dict[bytes, list[int]] = {}
        for number, (ask, names) in enumerate(zip(asks, self.names, strict=True)):
            for name in names[: (len(ask.prompt) - 1) // SIZE]:
                self._comes.setdefault(name, []).append(number)

    def later(self, name: bytes, number: int) -> list[int]:
        """The prompts from that number on that have the block."""
        comes = self._comes.get(name, [])
        return comes[bisect.bisect_left(comes, number) :]

    def partings(self, number: int) -> list[int]:
        """Where prompts that come later leave that text, in tokens."""
        later = [len(self.later(name, number + 1)) for name in self.names[number]]
        pairs = enumerate(itertools.pairwise([*later, 0]), 1)
        return [end * SIZE for end, (here, next_) in pairs if here > next_]


class LastEnd(SnapshotPlaces):
    """Only at the last block's end of a prompt."""

    def of(self, num_tokens: int, cached: int, known: int, marks: Iterable[int] = ()) -> list[int]:
        last = (num_tokens - 1) // self.block_size * self.block_size
        return [last] if cached < last else []


class Oldest(Snapshots):
    """The least recently used goes first."""

    def __init__(self, pool: BlockPool, alive: Callable[[bytes], bool]) -> None:
        super().__init__(pool, alive)
        self._latest: dict[int, int] = {}

    def add(self, slot: int, names: Sequence[bytes], depth: int, *, parted: bool = False) -> bool:
        self._latest[slot] = self._texts
        return super().add(slot, names, depth, parted=parted)

    def found(self, slot: int, *, parts: bool = True) -> None:
        self._latest[slot] = self._texts
        super().found(slot, parts=parts)

    def _worth(self, slot: int) -> float:
        return self._latest.get(slot, 0)

    def _worth_of(self, one: _Snapshot) -> float:
        return self._texts


class Oracle(Snapshots):
    """What saves most tokens soonest stays, of texts that find nothing deeper."""

    def __init__(self, texts: Texts, pool: BlockPool, alive: Callable[[bytes], bool]) -> None:
        super().__init__(pool, alive)
        self._all = texts

    def _worth(self, slot: int) -> float:
        return -1.0 if self._pool.content(slot) is None else super()._worth(slot)

    def _worth_of(self, one: _Snapshot) -> float:
        deeper = {number for other in one.above for number in self._later(other)}
        comes = next((number for number in self._later(one) if number not in deeper), None)
        if comes is None:
            return -1.0
        covered = one.depth - (0 if one.below is None else one.below.depth)
        return covered / (comes + 1 - self._texts)

    def _later(self, one: _Snapshot) -> list[int]:
        return self._all.later(one.names[one.depth - 1], self._texts)


class Tally(NamedTuple):
    found: int
    there: int  # that attention's blocks had
    none: int  # requests that found nothing where these had something

    def __str__(self) -> str:
        return f"{self.found / self.there if self.there else 1.0:.1%} ({self.none})"


Kind = Callable[[BlockPool, Callable[[bytes], bool]], Snapshots]


class Keeper(NamedTuple):
    """Who keeps snapshots: where they are taken, and which go first."""

    places: SnapshotPlaces
    kind: Kind | None = None  # None: as Quire
    foresees: bool = False  # leaves some where texts will part

    def serve(self, texts: Texts, allocator: LayeredAllocator) -> Tally:
        """Requests one after the other; ``RUNNING`` of them hold their blocks at a time."""
        blocks, states = allocator.kv_groups
        assert isinstance(blocks, PagedAllocator) and isinstance(states, StateAllocator)
        if self.kind is not None:
            states._snapshots = self.kind(
                states.device, lambda name: blocks.locate(name) is not None
            )
        found = there = none = 0
        for seq_id, (ask, names) in enumerate(zip(texts.asks, texts.names, strict=True)):
            if seq_id >= RUNNING:
                allocator.free(seq_id - RUNNING)
            size = len(ask.prompt)
            demand = Demand(size, names[: size // SIZE])
            fit = allocator.fit(demand)
            cached = allocator.admit(seq_id, demand)
            assert cached is not None, "a larger --pool"
            found, there = found + cached, there + cached + fit.stateless
            none += fit.stateless > 0 and not cached
            places = self.places.of(size, cached, cached + fit.stateless)
            if self.foresees:
                places = [end for end in texts.partings(seq_id) if cached < end < size]
            grow(allocator, seq_id, names, cached, size)
            for place, idle in self.places.in_turn(places):
                allocator.leave(seq_id, names, place // SIZE, idle=idle)
            whole = size + len(ask.answer)
            steps = range(size // SIZE * SIZE + SIZE, whole, SIZE)
            self._run(allocator, seq_id, names, [size, *steps, whole])
        return Tally(found, there, none)

    def _run(
        self, allocator: LayeredAllocator, seq_id: int, names: Sequence[bytes], ends: list[int]
    ) -> None:
        for here, end in itertools.pairwise(ends):
            grow(allocator, seq_id, names, here, end)


class Room(NamedTuple):
    """pool: tokens that it holds. state: tokens that take as much as one. slots: of snapshots."""

    pool: int
    state: int
    slots: int

    def allocator(self, places: SnapshotPlaces, *, shared: bool = False) -> LayeredAllocator:
        """shared: blocks and states have as much memory together, on pages."""
        kept, count = KeptState(places.every, places.decoding), RUNNING + self.slots
        if not shared:
            own = PagedAllocator(self.pool // SIZE, SIZE)
            alive = lambda name: own.locate(name) is not None  # noqa: E731
            return LayeredAllocator(SIZE, [own], StateAllocator(count, SIZE, 0, kept, alive))
        span = -(-self.state // SIZE)
        pages = SharedPages(self.pool // SIZE // span + count, span)
        pool, slots = SharedPool(pages, 1), SharedPool(pages, span)
        blocks = PagedAllocator(pool.num_blocks, SIZE, device=pool)
        there = lambda name: blocks.locate(name) is not None  # noqa: E731
        states = StateAllocator(slots.num_blocks, SIZE, 0, kept, there, slots)
        return LayeredAllocator(SIZE, [blocks], states, pages)


def grow(
    allocator: LayeredAllocator, seq_id: int, names: Sequence[bytes], here: int, end: int
) -> None:
    allocator.settle()
    if allocator.append({seq_id: end - here}) is None:
        raise SystemExit("the pool is too small for this: a larger --pool")
    if end // SIZE > here // SIZE:
        allocator.commit(seq_id, names, end // SIZE)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--state", type=int, default=3000, help="tokens (default: %(default)s)")
    parser.add_argument("--pool", type=int, default=1_000_000, help="tokens (default: %(default)s)")
    parser.add_argument("--every", type=int, default=512, help="(default: %(default)s)")
    parser.add_argument("--decoding", type=int, default=64, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    room = Room(given.pool, given.state, max(1, given.pool // 10 // given.state))
    ours, last = (kind(given.every, SIZE, given.decoding) for kind in (SnapshotPlaces, LastEnd))
    print(f"{room.slots} snapshots; the share of what blocks have (requests that found nothing)")
    titles = ("Quire", "oracle", "last end", "oldest first", "on pages")
    print(f"{'':20} {'tokens':>9}{''.join(f'{title:>14}' for title in titles)}")
    for name, make in WORKLOADS.items():
        texts = Texts(list(make(random.Random(given.seed))))
        keepers = (
            Keeper(ours),
            Keeper(SnapshotPlaces(given.every, SIZE, SIZE), partial(Oracle, texts), foresees=True),
            Keeper(last, Oldest),
            Keeper(ours, Oldest),
        )
        tallies = [one.serve(texts, room.allocator(one.places)) for one in keepers]
        shared = keepers[0].serve(texts, room.allocator(ours, shared=True))
        tallies.append(shared._replace(there=tallies[0].there))
        shares = "".join(f"{tally!s:>14}" for tally in tallies)
        print(f"{name:20} {tallies[0].there:9,}{shares}", flush=True)


if __name__ == "__main__":
    main()
