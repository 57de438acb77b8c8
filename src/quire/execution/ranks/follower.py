"""The other ranks: they do what rank 0 tells them, until it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import NoReturn

import torch

from quire.core.memory import BlockMove, BlockSource, MoveKind
from quire.core.protocol import Adapter
from quire.execution.adapters import StepAdapters
from quire.execution.forward import Worker, nothing_sampled
from quire.execution.ranks.messages import Order, decode
from quire.kernels.ranks import RankGroup

_PATIENCE = 60.0  # seconds; whether rank 0 is there still, others look


def follow(
    group: RankGroup,
    worker: Worker,
    adapters: StepAdapters | None,
    source: BlockSource | None = None,
) -> NoReturn:
    """Compute whatever rank 0 computes. source: the worker's, if it has one.

    Raises:
        RankError: rank 0 is gone, or another.
    """
    with torch.inference_mode():
        while True:
            message = group.hear(_PATIENCE)
            if message is not None:
                _carry_out(decode(message), group, worker, adapters, source)


def _carry_out(
    order: Order,
    group: RankGroup,
    worker: Worker,
    adapters: StepAdapters | None,
    source: BlockSource | None,
) -> None:
    batch = order.batch
    if order.cleared and source is not None:
        source.clear()
    if order.used and source is not None:
        source.used(order.used)
    if order.moves:
        failed = [*worker.move(order.moves), *_not_stored(order.moves, source)]
        if any(move.kind is not MoveKind.COPY for move in order.moves):
            group.answer(_places(failed, order.moves))
    if batch is not None:
        if adapters is not None:
            adapters.at_hand = [Adapter(fingerprint, "") for fingerprint in order.adapters]
        hidden = worker.compute(batch, nothing_sampled)
        if batch.header.asked:
            worker.logits(hidden.asked)
    if order.states is not None:
        worker.logits(order.states)


def _not_stored(moves: Sequence[BlockMove], source: BlockSource | None) -> list[BlockMove]:
    """The moves that could not be stored: there was no room, or the disk failed."""
    return [
        move
        for move in moves
        if move.kind is MoveKind.STORE
        and move.content is not None
        and source is not None
        and not source.has(move.content.name)
    ]


def _places(failed: Sequence[BlockMove], moves: Sequence[BlockMove]) -> bytes:
    """The places in ``moves`` of those that failed."""
    own = set(map(id, failed))
    places = [place for place, move in enumerate(moves) if id(move) in own]
    return pack(f"{len(places)}q", *places)
