"""How well snapshots can be kept by who knows the past alone: a bound for ``snapshots.py``.

    python -m benchmarks.snapshots_bound [--seed 0] [--rollouts 8] [--ahead 60]

Before each text the process forks, and its copies draw how the workload may go on: from the very
state that its generator is in, with other numbers. A snapshot is worth what it saves in these
futures, as the oracle's is in the true one. So this one knows by what rules texts come, and what
was drawn at the start (in which order users talk, where agents part), as no server does; what it
does not know is what will be drawn. It takes some minutes.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from benchmarks.snapshots import RUNNING, SIZE, Ask, Room, Text, grow, mixed
from quire.core.memory import Demand, PagedAllocator, SnapshotPlaces, StateAllocator, hash_blocks
from quire.core.memory.pool import BlockPool
from quire.core.memory.snapshots import Snapshots, _Snapshot

Places = Mapping[bytes, tuple[int, int]]  # by name: how many tokens, and which the last is


class Future(NamedTuple):
    """Texts that may come: of each, how much it shares with the one at hand, and its length."""

    shared: list[tuple[int, int]]
    by_name: dict[bytes, list[int]]  # the texts that begin with what a snapshot stands for

    def uses(self, name: bytes, depth: int) -> list[int]:
        """The texts that have that beginning."""
        if name in self.by_name:
            return self.by_name[name]
        both = enumerate(self.shared)
        return [number for number, (common, size) in both if depth <= min(common, size - 1)]


def _common(one: Text, other: Text) -> int:
    """Tokens that both begin with; tokens are drawn, so texts that part never come together."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[middle - 1] == other[middle - 1] else (low, middle - 1)
    return low


def _draw(
    asks: Iterator[Ask], rng: random.Random, text: Text, places: Places, ahead: int, seed: int
) -> Future:
    """One way to go on, drawn by a copy of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            future: Future = pickle.loads(file.read())
        os.waitpid(child, 0)
        return future
    rng.seed(seed)
    found = Future([], {name: [] for name in places})
    for number, (prompt, _) in enumerate(itertools.islice(asks, ahead)):
        found.shared.append((_common(text, prompt), len(prompt)))
        for name, (depth, last) in places.items():
            if depth < len(prompt) and prompt[depth - 1] == last:
                found.by_name[name].append(number)
    with os.fdopen(writing, "wb") as file:
        file.write(pickle.dumps(found))
    os._exit(0)


class Expecting(Snapshots):
    """What is expected to save most tokens soonest stays."""

    def __init__(self, pool: BlockPool, alive: Callable[[bytes], bool]) -> None:
        super().__init__(pool, alive)
        self.futures: list[Future] = []

    def names(self) -> dict[bytes, int]:
        """Of all snapshots, with their tokens."""
        each = self._by_slot.values()
        return {one.names[one.depth - 1]: one.depth * SIZE for one in each}

    def _worth_of(self, one: _Snapshot) -> float:
        soon = 0.0
        for future in self.futures:
            deeper = {number for other in one.above for number in _uses(future, other)}
            first = next((each for each in _uses(future, one) if each not in deeper), None)
            soon += 0.0 if first is None else 1 / (first + 1)
        return (one.depth - (0 if one.below is None else one.below.depth)) * soon


def _uses(future: Future, one: _Snapshot) -> list[int]:
    return future.uses(one.names[one.depth - 1], one.depth * SIZE)


def serve(rng: random.Random, room: Room, rollouts: int, ahead: int) -> float:
    """The share of what blocks have that is found."""
    where = SnapshotPlaces(512, SIZE, 64)
    allocator, asks = room.allocator(where), mixed(rng)
    blocks, states = allocator.kv_groups
    assert isinstance(blocks, PagedAllocator) and isinstance(states, StateAllocator)
    kept = Expecting(states.device, lambda name: blocks.locate(name) is not None)
    states._snapshots = kept
    last: dict[bytes, int] = {}
    found = there = 0
    for seq_id, (prompt, answer) in enumerate(asks):
        if seq_id >= RUNNING:
            allocator.free(seq_id - RUNNING)
        text, size = prompt + answer, len(prompt)
        names = hash_blocks(b"", text, SIZE)
        places = {name: (depth, last[name]) for name, depth in kept.names().items()}
        kept.futures = [
            _draw(asks, rng, text, places, ahead, seq_id * rollouts + number)
            for number in range(rollouts)
        ]
        last = {name: token for name, (_, token) in places.items()}
        last |= {name: text[(i + 1) * SIZE - 1] for i, name in enumerate(names)}
        demand = Demand(size, names[: size // SIZE])
        stateless, cached = allocator.fit(demand).stateless, allocator.admit(seq_id, demand)
        assert cached is not None
        found, there = found + cached, there + cached + stateless
        grow(allocator, seq_id, names, cached, size)
        for place, idle in where.in_turn(where.of(size, cached, cached + stateless)):
            allocator.leave(seq_id, names, place // SIZE, idle=idle)
        ends = [size, *range(size // SIZE * SIZE + SIZE, len(text), SIZE), len(text)]
        for here, end in itertools.pairwise(ends):
            grow(allocator, seq_id, names, here, end)
    return found / there


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rollouts", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--ahead", type=int, default=60, help="texts (default: %(default)s)")
    given = parser.parse_args()
    room = Room(1_000_000, 3000, 33)
    share = serve(random.Random(given.seed), room, given.rollouts, given.ahead)
    print(f"all at once, {room.slots} snapshots: {share:.1%} of what blocks have")


if __name__ == "__main__":
    main()
