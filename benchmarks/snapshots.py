"""Which states are kept of a hybrid model's texts: tokens that are found again, without a model.

    python benchmarks/snapshots.py [--state 3000] [--pool 1000000] [--seed 0]

A state takes as much memory as ``--state`` tokens' keys and values, and a tenth of a pool of
``--pool`` tokens is for snapshots beside it. The oracle has one at the end of every block: all is
found that attention's blocks have. Beside what Quire does: who keeps only the last block's end of
each prompt (vLLM's align mode), and who keeps the same snapshots but lets go of the least recently
used.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from quire.core.memory import (
    Demand,
    KeptState,
    LayeredAllocator,
    PagedAllocator,
    SnapshotStops,
    StateAllocator,
    hash_blocks,
)
from quire.core.memory.snapshots import Snapshots

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


def mixed(rng: random.Random) -> Iterator[Ask]:
    """All of them at once."""
    sources = [make(rng) for make in WORKLOADS.values() if make is not mixed]
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
}


class LastEnd(SnapshotStops):
    """Only at the last block's end of a prompt."""

    def of(self, num_tokens: int, cached: int, known: int) -> list[int]:
        last = (num_tokens - 1) // self.block_size * self.block_size
        return [last] if cached < last else []


class Oldest(Snapshots):
    """The least recently used goes first."""

    def _worth(self, slot: int) -> float:
        return self._used[slot]


class Tally(NamedTuple):
    found: int
    there: int  # that attention's blocks had
    none: int  # requests that found nothing where these had something

    @property
    def share(self) -> float:
        return self.found / self.there if self.there else 1.0


def serve(
    asks: Sequence[Ask], pool: int, slots: int, kept: KeptState, stops: SnapshotStops, oldest: bool
) -> Tally:
    """Requests one after the other; ``RUNNING`` of them hold their blocks at a time."""
    blocks = PagedAllocator(pool // SIZE, SIZE)
    states = StateAllocator(
        RUNNING + slots, SIZE, 0, kept, lambda name: blocks.locate(name) is not None
    )
    if oldest:
        states._snapshots = Oldest(states.device, lambda name: True)
    allocator = LayeredAllocator(SIZE, [blocks], states)
    found = there = none = 0
    for seq_id, ask in enumerate(asks):
        if seq_id >= RUNNING:
            allocator.free(seq_id - RUNNING)
        text = ask.prompt + ask.answer
        names, size = hash_blocks(b"", text, SIZE), len(ask.prompt)
        demand = Demand(size, names[: size // SIZE])
        fit = allocator.fit(demand)
        cached = allocator.admit(seq_id, demand)
        assert cached is not None, "a larger --pool"
        found, there = found + cached, there + cached + fit.stateless
        none += fit.stateless > 0 and not cached
        here = cached
        for end in [*stops.of(size, cached, cached + fit.stateless), size]:
            grow(allocator, seq_id, names, here, end)
            here = end
        for end in range(size + 1, len(text)):
            grow(allocator, seq_id, names, end - 1, end)
    return Tally(found, there, none)


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
    slots = max(1, given.pool // 10 // given.state)
    kept = KeptState(given.every, given.decoding)
    ours, last = (kind(given.every, SIZE, given.decoding) for kind in (SnapshotStops, LastEnd))
    print(f"{slots} snapshots; the share of what the oracle finds (requests that found nothing)")
    print(f"{'':20} {'tokens':>9} {'Quire':>13} {'last end':>13} {'oldest first':>13}")
    for name, make in WORKLOADS.items():
        asks = list(make(random.Random(given.seed)))
        tallies = [
            serve(asks, given.pool, slots, kept, stops, oldest)
            for stops, oldest in ((ours, False), (last, True), (ours, True))
        ]
        shares = "".join(f"{f'{one.share:.1%} ({one.none})':>14}" for one in tallies)
        print(f"{name:20} {tallies[0].there:9,}{shares}", flush=True)


if __name__ == "__main__":
    main()
