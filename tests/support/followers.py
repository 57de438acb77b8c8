"""Ranks that are told of steps and nothing else, and a router that hears events and nothing else:
what each holds to be in the pool, after every step, beside what is there."""

from __future__ import annotations

import random
from collections.abc import Sequence

from quire.core.memory import BlockTable, MoveKind
from quire.core.protocol import Opened, Step, StepResult
from quire.core.scheduling import AllBlocksCleared, BlockEvent, BlocksStored
from quire.execution.batch import StepBatch, pack
from quire.execution.ranks.messages import Order, decode, encode
from support.event_runs import Told
from support.fake_model import FULL, FakeLayer, Windows, key_of
from support.scheduler_runs import MakeAllocator, make_paged

NUM_FOLLOWERS = 2


class Follower:
    """A rank of the fake model. What it has are the messages of rank 0, as bytes.

    failure_rate: of its own moves to and from the host.
    """

    def __init__(self, layers: Sequence[FakeLayer], seed: int, failure_rate: float) -> None:
        self.layers = [
            FakeLayer(len(one.device), one.block_size, len(one.host), one.sight) for one in layers
        ]
        self.tables: list[list[BlockTable]] = []  # of the last step's sequences, by KV group
        self._rng, self._failure_rate = random.Random(seed), failure_rate

    def hear(self, message: bytes) -> set[int]:
        """Carry an order out; the places of the moves that failed."""
        order = decode(message)
        failed = set()
        for place, move in enumerate(order.moves):
            fails = move.kind is not MoveKind.COPY and self._rng.random() < self._failure_rate
            if self.layers[move.kv_group].move(move, fails):
                failed.add(place)
        self.tables = []
        if order.batch is not None:
            self._compute(order)
        return failed

    def _compute(self, order: Order) -> None:
        assert order.batch is not None
        fields, size = order.batch.fields(), order.batch.header.block_size
        batch, starts = fields.attention, order.batch.query_starts
        tokens, positions = fields.token_ids.tolist(), batch.positions.tolist()
        for number, (layer, told) in enumerate(zip(self.layers, batch.kv_groups, strict=True)):
            sinks, dropped = told.num_sink_blocks, told.num_dropped.tolist()
            ids = zip(told.block_tables.tolist(), dropped, strict=True)
            tables = [BlockTable(tuple(blocks), size, gone, sinks) for blocks, gone in ids]
            self.tables.append(tables)
            slots = told.slots.tolist()
            for table, first, end in zip(tables, starts, starts[1:], strict=False):
                for row in range(first, end):
                    position, previous = positions[row], 0
                    if position and layer.sight.window != 1:
                        previous = layer.read(table, position - 1)
                    block, offset = divmod(slots[row], size)
                    key = key_of(number, layer.sight, previous, tokens[row])
                    layer.device[block][offset] = key


class Router:
    """Keys of every block that has been told of, from the tokens in the events."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self.keys: dict[tuple[int, bytes], list[int]] = {}

    def take(self, events: Sequence[BlockEvent]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.keys.clear()
            if isinstance(event, BlocksStored):
                self._store(event)

    def _store(self, event: BlocksStored) -> None:
        group, sight = event.kv_group, self._windows[event.kv_group]
        before = [0] if event.parent is None else self.keys.get((group, event.parent))
        if before is None:  # it has fallen out of the window unseen
            return
        previous, size = before[-1], len(event.token_ids) // len(event.names)
        for place, name in enumerate(event.names):
            keys = []
            for token in event.token_ids[place * size : (place + 1) * size]:
                previous = key_of(group, sight, previous, token)
                keys.append(previous)
            self.keys[group, name] = keys


class Followed(Told):
    """A life of which followers and a router know the same as the engine, step by step."""

    def __init__(
        self, seed: int, make_allocator: MakeAllocator = make_paged, windows: Windows = FULL
    ) -> None:
        super().__init__(seed, make_allocator, windows)
        rate = 0.1 if seed % 2 else 0.0
        layers = self.executor.layers
        self.followers = [Follower(layers, seed + n, rate) for n in range(NUM_FOLLOWERS)]
        self.router = Router(windows)
        self.num_compared = self.num_routed = self.num_copied = self.num_dropped = 0
        compute = self.executor.compute

        def told(step: Step, known: Sequence[Opened]) -> StepResult:
            message = encode(Order(step.moves, self._batch(step)))
            failed = set().union(*(follower.hear(message) for follower in self.followers))
            self.check_tables(step)
            self.num_copied += sum(move.kind is MoveKind.COPY for move in step.moves)
            result = compute(step, known)
            own = set(map(id, result.failed_moves))
            of_any = [m for n, m in enumerate(step.moves) if n in failed or id(m) in own]
            return StepResult(result.outcomes, of_any)

        self.executor.compute = told  # type: ignore[method-assign]

    def _batch(self, step: Step) -> StepBatch | None:
        return pack(step.chunks, self.allocator.block_size) if step.chunks else None

    def hear(self, events: Sequence[BlockEvent]) -> None:
        super().hear(events)
        self.router.take(events)

    def check_tables(self, step: Step) -> None:
        """Before anything is computed: each follower has the allocator's own."""
        alive = self.kv_groups()[0].tables  # others were aborted since
        own = [
            (self.allocator.table(one.seq_id) if one.seq_id in alive else one.table).kv_groups
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

    def step(self, now: float) -> None:
        super().step(now)
        for number, kv_group in enumerate(self.kv_groups()):
            pool, filled = kv_group.device, kv_group.occupancy.filled
            own = self.executor.layers[number].device
            for block in range(pool.num_blocks):
                count = filled[block] if pool.ref_counts[block] else 0
                self.num_compared += count
                for follower in self.followers:
                    held = follower.layers[number].device[block][:count]
                    assert held == own[block][:count], (number, block)
            for name, block in pool._block_of.items():
                keys = self.router.keys.get((number, name))
                if keys is not None:
                    self.num_routed += 1
                    for layer in (own, *(one.layers[number].device for one in self.followers)):
                        assert layer[block] == keys, (number, block)
