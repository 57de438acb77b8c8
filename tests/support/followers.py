"""Ranks that are told of steps and nothing else, and a router that hears events and nothing else:
what each holds to be in the pool, after every step, beside what is there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from lives.device import LOST, Pool, Task
from lives.life import Run
from lives.script import Abort, Ask, Life, Reset, draw
from lives.texts import first_key, key_after

from quire.blocks.events.events import AllBlocksCleared, BlockEvent, BlocksStored
from quire.core.memory import BlockTable, MoveKind
from quire.core.protocol import Step
from quire.execution.batch import StepBatch, pack
from quire.execution.ranks.messages import Order, decode, encode

NUM_FOLLOWERS = 2


class Follower:
    """A rank. What it has are the messages of rank 0, as bytes.

    failure_rate: of its own moves to and from the host.
    """

    def __init__(self, pools: Sequence[Pool], seed: int, failure_rate: float) -> None:
        self.pools = [Pool(p.sight, len(p.device), p.size, len(p.host)) for p in pools]
        self.tables: list[list[BlockTable]] = []  # of the last step's sequences, by KV group
        self._rng, self._failure_rate = random.Random(seed), failure_rate

    def hear(self, message: bytes, keys: Sequence[tuple[int, int]]) -> set[int]:
        """Carry an order out; the numbers of the moves that failed.

        keys: of all rows, with the tokens that they are of.
        """
        order, failed = decode(message), set()
        for number, move in enumerate(order.moves):
            pool = self.pools[move.kv_group]
            source = pool.host if move.kind is MoveKind.SWAP_IN else pool.device
            target = pool.host if move.kind is MoveKind.SWAP_OUT else pool.device
            target[move.target] = list(source[move.source])
            if move.kind is not MoveKind.COPY and self._rng.random() < self._failure_rate:
                target[move.target] = [LOST] * pool.size
                failed.add(number)
        self.tables = []
        if order.batch is not None:
            self._compute(order.batch, keys)
        return failed

    def _compute(self, step: StepBatch, keys: Sequence[tuple[int, int]]) -> None:
        fields, size = step.fields(), step.header.block_size
        batch = fields.attention
        assert fields.token_ids.tolist() == [token for token, _ in keys]
        for pool, told in zip(self.pools, batch.kv_groups, strict=True):
            sinks, dropped = told.num_sink_blocks, told.num_dropped.tolist()
            ids = zip(told.block_tables.tolist(), dropped, strict=True)
            self.tables.append([BlockTable(tuple(b), size, gone, sinks) for b, gone in ids])
            for slot, (_, key) in zip(told.slots.tolist(), keys, strict=True):
                pool.device[slot // size][slot % size] = key


class Router:
    """Keys of every block that has been told of, from the tokens in the events."""

    def __init__(self) -> None:
        self.keys: dict[tuple[int, bytes], list[int]] = {}

    def take(self, events: Sequence[BlockEvent]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.keys.clear()
            if isinstance(event, BlocksStored):
                self._store(event)

    def _store(self, event: BlocksStored) -> None:
        first, group = first_key(event.cache_salt, event.adapter), event.kv_group
        before = [first] if event.parent is None else self.keys.get((group, event.parent))
        if before is None:  # it has fallen out of the window unseen
            return
        previous, size = before[-1], len(event.token_ids) // len(event.names)
        for place, name in enumerate(event.names):
            keys = []
            for token in event.token_ids[place * size : (place + 1) * size]:
                previous = key_after(previous, token)
                keys.append(previous)
            self.keys[group, name] = keys


def followed_life(number: int) -> Life:
    """No step fails or is planned ahead, nobody makes drafts of places that are left for them, and
    there are no cuts, which events do not tell.
    """
    life = draw(number)
    events = [event for event in life.events if isinstance(event, (Ask, Abort, Reset))]
    settings = replace(life.settings, ahead=False, watched=True, forgets=None, states=0)
    settings = replace(settings, draft_model="")
    return replace(life, settings=settings, events=tuple(events))


class Followed(Run):
    """A life of which followers and a router know the same as the engine, step by step."""

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        rate = 0.1 if life.number % 2 else 0.0
        pools = self.device.pools
        self.followers = [Follower(pools, life.number + n, rate) for n in range(NUM_FOLLOWERS)]
        self.router = Router()
        self.num_compared = self.num_routed = self.num_dropped = 0
        self.device.elsewhere = self._tell

    def _tell(self, step: Step, tasks: Sequence[Task]) -> set[int]:
        batch = pack(step.chunks, self.life.settings.block_size) if step.chunks else None
        keys = [pair for one in tasks for pair in zip(one.chunk.token_ids, one.keys, strict=True)]
        message = encode(Order(step.moves, batch))
        failed = set[int]().union(*(follower.hear(message, keys) for follower in self.followers))
        if step.chunks:
            self._check_tables(step)
        return failed

    def hear(self, events: Sequence[BlockEvent]) -> None:
        super().hear(events)
        self.router.take(events)

    def _check_tables(self, step: Step) -> None:
        """Before anything is computed: each follower has the allocator's own."""
        alive = self.oracle.kv_groups[0].tables  # others were aborted since
        allocator = self.scheduler.allocator
        own = [
            (allocator.table(one.seq_id) if one.seq_id in alive else one.table).kv_groups
            for one in step.chunks
        ]
        for follower in self.followers:
            for tables, expected in zip(follower.tables, zip(*own, strict=True), strict=True):
                for told, table in zip(tables, expected, strict=True):
                    count = len(table.block_ids)
                    assert told.block_ids[:count] == table.block_ids
                    assert told.num_dropped == table.num_dropped
                    self.num_dropped += table.num_dropped
                    assert told.num_sink_blocks == table.num_sink_blocks

    def check(self) -> None:
        super().check()
        for number, kv_group in enumerate(self.oracle.kv_groups):
            pool, filled = kv_group.device, kv_group.occupancy.filled
            own = self.device.pools[number].device
            for block, owners in enumerate(pool.ref_counts):
                count = filled.get(block, 0) if owners else 0
                self.num_compared += count
                for follower in self.followers:
                    held = follower.pools[number].device[block][:count]
                    assert held == own[block][:count], (number, block)
            for name, block in pool._block_of.items():
                keys = self.router.keys.get((number, name))
                if keys is not None:
                    self.num_routed += 1
                    for held in (own, *(one.pools[number].device for one in self.followers)):
                        assert held[block] == keys, (number, block)
