"""Where nothing is as it should be, once some of a step's moves have failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from quire.core.memory import BlockMove, MoveKind
from quire.core.protocol.step import Chunk, Step

_WITHIN = {MoveKind.COPY, MoveKind.SWAP_OUT, MoveKind.SWAP_IN}
"""Moves whose source is a block of the pool, on the device or on the host."""


class PhysicalBlock(NamedTuple):
    """A block of a KV group, on the device or on the host."""

    on_host: bool
    kv_group: int
    block: int


def target_of(move: BlockMove) -> PhysicalBlock:
    """Where a move goes."""
    return PhysicalBlock(move.kind is MoveKind.SWAP_OUT, move.kv_group, move.target)


def lost_blocks(step: Step, failed: Iterable[BlockMove], block_size: int) -> set[PhysicalBlock]:
    """What the failed moves should have filled, and all that the step made of it.

    That is what was copied of such blocks, to the host and back too, and the blocks of chunks that
    read one: another sequence may have found these, equal beginnings being shared within a step,
    and under a window it need not hold the block that was lost as well.
    """
    missing = set(failed)
    lost = {target_of(move) for move in missing}
    if not lost:
        return lost
    for move in step.moves:
        source = PhysicalBlock(move.kind is MoveKind.SWAP_IN, move.kv_group, move.source)
        if move.kind in _WITHIN and source in lost:
            lost.add(target_of(move))
    sound = list(step.chunks)
    while invalid := [chunk for chunk in sound if not lost.isdisjoint(_read(chunk))]:
        sound = [chunk for chunk in sound if lost.isdisjoint(_read(chunk))]
        for chunk in invalid:
            lost.update(written(chunk, block_size))
    return lost


def _read(chunk: Chunk) -> Iterator[PhysicalBlock]:
    for kv_group, table in enumerate(chunk.table.kv_groups):
        yield from (PhysicalBlock(False, kv_group, block) for block in table.block_ids)


def written(chunk: Chunk, block_size: int) -> Iterator[PhysicalBlock]:
    """The blocks that hold a chunk's tokens, its state, and those that it leaves."""
    first = chunk.start // block_size
    last = (chunk.start + len(chunk.token_ids) - 1) // block_size
    for kv_group, table in enumerate(chunk.table.kv_groups):
        if table.keeps_state:
            for slot in (table.block_ids[0], *(slot for _, slot in chunk.left)):
                yield PhysicalBlock(False, kv_group, slot)
            continue
        for logical in range(first, last + 1):
            yield PhysicalBlock(False, kv_group, table.block(logical))
