"""What rank 0 tells the others of a step: whole numbers, and rows for the head."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack, unpack, unpack_from
from typing import NamedTuple

import torch
from torch import Tensor

from quire.core.memory import BlockHash, BlockMove, Content, MoveKind
from quire.execution.batch import Header, StepBatch

_KINDS = list(MoveKind)
_NUMBER_OF = {kind: number for number, kind in enumerate(_KINDS)}
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_HEAD = 18  # numbers before all others
_NONE = -1
DIGEST = 32  # bytes of an adapter's fingerprint
_NAME = 16  # bytes of a block's name


class Order(NamedTuple):
    """What all ranks do next, in the order of these fields."""

    moves: Sequence[BlockMove] = ()
    batch: StepBatch | None = None  # then the head, for the rows that it asks for
    adapters: Sequence[bytes] = ()  # fingerprints of those that its sequences have, as numbered
    states: Tensor | None = None  # [R, d]: further rows for the head
    used: Sequence[BlockHash] = ()  # before all that comes above; see ``BlockSource.used``
    cleared: bool = False  # before that; see ``BlockSource.clear``


def encode(order: Order) -> bytes:
    """An order, as one message."""
    batch, states = order.batch, order.states
    contents = [move.content for move in order.moves if move.content is not None]
    block_size = len(contents[0].token_ids) if contents else 0
    numbers = [len(order.moves), len(order.adapters), len(order.used), order.cleared, block_size]
    if batch is None:
        numbers += [_NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    else:
        tokens, seqs, widths, _, block_size, asked, _, *counts = batch.header
        numbers += [tokens, seqs, len(widths), block_size, asked, *counts]
    if states is None:
        numbers += [_NONE, 0, 0]
    else:
        numbers += [*states.shape, _DTYPES.index(states.dtype)]
    for kind, source, target, kv_group, content in order.moves:
        numbers += [_NUMBER_OF[kind], source, target, kv_group, content is not None]
    for content in contents:
        numbers += [*unpack("2q", content.name), *content.token_ids]
    if batch is not None:
        numbers += [*batch.header.widths, *batch.header.sink_blocks]
    parts: list[bytes | memoryview] = [pack(f"{len(numbers)}q", *numbers)]
    parts += [*order.adapters, *order.used]
    if batch is not None:
        parts.append(_bytes(batch.buffer))
    if states is not None:
        parts.append(_bytes(states.contiguous()))
    return b"".join(parts)


def decode(message: bytes) -> Order:
    head = unpack_from(f"{_HEAD}q", message)
    num_moves, num_adapters, num_used, cleared, content_size = head[:5]
    tokens, seqs, kv_groups, block_size, asked, *counts = head[5:15]
    moves, place = _moves(message, num_moves, content_size)
    widths = unpack_from(f"{kv_groups}q", message, place)
    sinks = unpack_from(f"{kv_groups}q", message, place + 8 * kv_groups)
    place += 16 * kv_groups
    adapters = _pieces(message, place, num_adapters, DIGEST)
    place += DIGEST * num_adapters
    used = _pieces(message, place, num_used, _NAME)
    place += _NAME * num_used
    batch, content = None, memoryview(bytearray(message))[place:]
    if tokens != _NONE:
        header = Header(tokens, seqs, widths, sinks, block_size, asked, 0, *counts)
        size = sum(header.lengths)
        buffer = torch.frombuffer(content, dtype=torch.int64, count=size)
        bounds = buffer[2 * tokens : 2 * tokens + seqs + 1]
        batch = StepBatch(header, buffer, tuple(bounds.tolist()))
        content = content[8 * size :]
    rows, width, dtype = head[15:]
    states = None
    if rows != _NONE:
        states = torch.frombuffer(content, dtype=_DTYPES[dtype]).view(rows, width)
    return Order(moves, batch, adapters, states, used, bool(cleared))


def _moves(message: bytes, count: int, block_size: int) -> tuple[list[BlockMove], int]:
    """``count`` moves, and where in the message they end. block_size: tokens of a content."""
    place = 8 * _HEAD
    flat = unpack_from(f"{5 * count}q", message, place)
    place += 8 * len(flat)
    moves = []
    fields = (flat[number::5] for number in range(5))
    for kind, start, target, kv_group, has_content in zip(*fields, strict=True):
        content = None
        if has_content:
            name = message[place : place + _NAME]
            content = Content(name, unpack_from(f"{block_size}q", message, place + _NAME))
            place += _NAME + 8 * block_size
        moves.append(BlockMove(_KINDS[kind], start, target, kv_group, content))
    return moves, place


def _pieces(message: bytes, place: int, count: int, size: int) -> list[bytes]:
    starts = range(place, place + count * size, size)
    return [message[start : start + size] for start in starts]


def _bytes(x: Tensor) -> memoryview:
    return x.view(-1).view(torch.uint8).numpy().data
