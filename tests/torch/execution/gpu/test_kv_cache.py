"""Moves of the device's pool equal those of the pool in main memory."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from quire.core.kv_groups import KVGroup
from quire.core.memory import BlockMove, MoveKind
from quire.execution.kv.cache import KVCache
from quire.kernels.layer_memory import KVShape, LayerKV
from quire.kernels.reference import ReferenceKernels
from support.gpu_kernels import INTERPRETED, TRITON, triton_kernels

pytestmark = pytest.mark.skipif(
    not (TRITON and INTERPRETED), reason="Triton, or its interpreter, is not here"
)

SHAPES = (KVShape(2, 5, 3), KVShape(1, 4, 4), KVShape(2, 3, 1))
LANES = [KVGroup((0, 2), 6, 4), KVGroup((1,), 5, 3)]


def fill(layers: Sequence[LayerKV]) -> None:
    """Each block with its own numbers, small enough for bfloat16."""
    for number, layer in enumerate(layers):
        for block in range(len(layer.keys)):
            layer.keys[block], layer.values[block] = 16 * number + block, -16 * number - block


KINDS = (MoveKind.COPY, MoveKind.SWAP_OUT, MoveKind.SWAP_IN)  # nothing is stored on GPUs


def random_moves(seed: int) -> list[BlockMove]:
    source = random.Random(seed)
    moves = []
    for _ in range(source.randint(1, 12)):
        kv_group, kind = source.randrange(2), source.choice(KINDS)
        blocks, host = range(LANES[kv_group].num_blocks), range(LANES[kv_group].num_host_blocks)
        origins = host if kind is MoveKind.SWAP_IN else blocks
        targets = host if kind is MoveKind.SWAP_OUT else blocks
        moves.append(BlockMove(kind, source.choice(origins), source.choice(targets), kv_group))
    return moves


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moves_are_as_if_in_their_order(dtype: torch.dtype) -> None:
    from quire.execution.gpu.kv_cache import DeviceKVCache

    triton_kernels()
    found = DeviceKVCache(SHAPES, LANES, 4, dtype, torch.device("cpu"))
    expected = KVCache(SHAPES, LANES, 4, dtype, ReferenceKernels())
    for layers in (found.layers, expected.layers):
        fill(layers)
    # Host blocks hold what was swapped out to them, so all of them begin alike.
    everything = [
        BlockMove(MoveKind.SWAP_OUT, block, block, kv_group)
        for kv_group in range(2)
        for block in range(LANES[kv_group].num_host_blocks)
    ]
    for moves in (everything, *map(random_moves, range(25))):
        assert found.move(moves) == []
        assert expected.move(moves) == []
        for mine, theirs in zip(found.layers, expected.layers, strict=True):
            assert torch.equal(mine.keys, theirs.keys)
            assert torch.equal(mine.values, theirs.values)


def test_one_launch_moves_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.execution.gpu.kv_cache import DeviceKVCache
    from quire.kernels.gpu.moves import BlockMover

    launched: list[int] = []
    launch = BlockMover._launch

    def count(self: BlockMover, pairs: Sequence[tuple[int, int]]) -> None:
        launched.append(len(pairs))
        launch(self, pairs)

    monkeypatch.setattr(BlockMover, "_launch", count)
    cache = DeviceKVCache(SHAPES, LANES, 4, torch.float32, torch.device("cpu"))
    cache.move([BlockMove(MoveKind.COPY, 0, target) for target in (1, 2, 3)])
    assert launched == [3]
    launched.clear()
    cache.move([BlockMove(MoveKind.COPY, 0, 1), BlockMove(MoveKind.COPY, 1, 2)])
    assert launched == [1, 1]


def test_without_host_blocks_nothing_is_swapped() -> None:
    from quire.execution.gpu.kv_cache import DeviceKVCache

    cache = DeviceKVCache(SHAPES[:1], [KVGroup((0,), 3)], 4, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="no host blocks"):
        cache.move([BlockMove(MoveKind.SWAP_OUT, 0, 0)])
