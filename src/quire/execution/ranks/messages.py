"""What rank 0 tells the others of a step: whole numbers, and rows for the head."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack, unpack_from
from typing import NamedTuple

import torch
from torch import Tensor

from quire.execution.batch import Header, StepBatch
from quire.memory import BlockMove, MoveKind

_KINDS = list(MoveKind)
_NUMBER_OF = {kind: number for number, kind in enumerate(_KINDS)}
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_HEAD = 12  # numbers before all others
_NONE = -1
DIGEST = 32  # bytes of an adapter's fingerprint


class Order(NamedTuple):
    """What all ranks do next, in the order of these fields."""

    moves: Sequence[BlockMove] = ()
    batch: StepBatch | None = None  # then the head, for the rows that it asks for
    adapters: Sequence[bytes] = ()  # fingerprints of those that its sequences have, as numbered
    states: Tensor | None = None  # [R, d]: further rows for the head


def encode(order: Order) -> bytes:
    """An order, as one message."""
    batch, states = order.batch, order.states
    numbers = [len(order.moves), len(order.adapters)]
    if batch is None:
        numbers += [_NONE, 0, 0, 0, 0, 0, 0]
    else:
        tokens, seqs, widths, _, block_size, asked, _, adapted, biases = batch.header
        numbers += [tokens, seqs, len(widths), block_size, asked, adapted, biases]
    if states is None:
        numbers += [_NONE, 0, 0]
    else:
        numbers += [*states.shape, _DTYPES.index(states.dtype)]
    for kind, source, target, kv_group, content in order.moves:
        assert content is None, "no rank but the first would find it"
        numbers += [_NUMBER_OF[kind], source, target, kv_group]
    if batch is not None:
        numbers += [*batch.header.widths, *batch.header.sink_blocks]
    parts: list[bytes | memoryview] = [pack(f"{len(numbers)}q", *numbers), *order.adapters]
    if batch is not None:
        parts.append(_bytes(batch.buffer))
    if states is not None:
        parts.append(_bytes(states.contiguous()))
    return b"".join(parts)


def decode(message: bytes) -> Order:
    """See ``encode``."""
    head = unpack_from(f"{_HEAD}q", message)
    num_moves, num_adapters, tokens, seqs, kv_groups, block_size, asked, *counts = head[:9]
    place = 8 * _HEAD
    flat = unpack_from(f"{4 * num_moves}q", message, place)
    quads = zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
    moves = [BlockMove(_KINDS[kind], *where) for kind, *where in quads]
    place += 8 * len(flat)
    widths = unpack_from(f"{kv_groups}q", message, place)
    sinks = unpack_from(f"{kv_groups}q", message, place + 8 * kv_groups)
    place += 16 * kv_groups
    ends = range(place + DIGEST, place + DIGEST * (num_adapters + 1), DIGEST)
    adapters = [message[end - DIGEST : end] for end in ends]
    place += DIGEST * num_adapters
    batch, content = None, memoryview(bytearray(message))[place:]
    if tokens != _NONE:
        header = Header(tokens, seqs, widths, sinks, block_size, asked, 0, *counts)
        size = sum(header.lengths)
        buffer = torch.frombuffer(content, dtype=torch.int64, count=size)
        bounds = buffer[2 * tokens : 2 * tokens + seqs + 1]
        batch = StepBatch(header, buffer, tuple(bounds.tolist()))
        content = content[8 * size :]
    rows, width, dtype = head[9:]
    states = None
    if rows != _NONE:
        states = torch.frombuffer(content, dtype=_DTYPES[dtype]).view(rows, width)
    return Order(moves, batch, adapters, states)


def _bytes(x: Tensor) -> memoryview:
    return x.view(-1).view(torch.uint8).numpy().data
