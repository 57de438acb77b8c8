"""The pool on a device, and its host blocks in pinned memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby

import torch
from torch import Tensor

from quire.core.kv_groups import KVGroup
from quire.core.memory import BlockMove, MoveKind
from quire.execution.gpu.memory import swap_memory
from quire.execution.kv.layers import layers_of
from quire.kernels.gpu.moves import BlockMover, Route
from quire.kernels.layer_memory import KVShape, StateShape

_Movers = dict[MoveKind, BlockMover]


class DeviceKVCache:
    """Keys and values of all layers, in blocks of ``block_size`` tokens, so many for each KV group.

    Where layers keep states, a block of their KV group is a slot: the states of one sequence.

    Blocks move on a stream of their own, which waits for what was computed before and which later
    work waits for; all layers of a KV group move in one launch.
    """

    def __init__(
        self,
        shapes: Sequence[KVShape | StateShape],
        kv_groups: Sequence[KVGroup],
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """ConfigError if main memory cannot hold the host blocks."""
        self.block_size = block_size

        def zeros(count: int, kind: torch.dtype) -> Tensor:
            return torch.zeros(count, dtype=kind, device=device)

        self.layers = layers_of(shapes, kv_groups, block_size, [dtype] * len(shapes), zeros)
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._host_blocks: list[Tensor] = []  # kept for as long as they are moved to
        self._movers = [self._kv_group_movers(kv_group, device) for kv_group in kv_groups]

    def move(self, moves: Sequence[BlockMove]) -> list[BlockMove]:
        """Carry out moves as if in their order, neighbours of one kind together; none fails."""
        if not moves:
            return []
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
        with self._on_stream():
            for (kv_group, kind), run in groupby(
                moves, key=lambda move: (move.kv_group, move.kind)
            ):
                if kind not in self._movers[kv_group]:
                    raise ValueError(f"this cache has no host blocks, so it cannot {kind.value}")
                self._movers[kv_group][kind].move((move.source, move.target) for move in run)
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        return []

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _kv_group_movers(self, kv_group: KVGroup, device: torch.device) -> _Movers:
        tensors = [tensor for layer in kv_group.layers for tensor in self.layers[layer].parts]
        routes = [Route.between(tensor, tensor) for tensor in tensors]
        movers = {MoveKind.COPY: BlockMover(routes, device, same_pool=True)}
        if kv_group.num_host_blocks:
            block_bytes = sum(route.size for route in routes)
            host = swap_memory(kv_group.num_host_blocks * block_bytes, device)
            self._host_blocks.append(host)
            place, out, back = host.data_ptr(), [], []
            for route in routes:
                out.append(route._replace(target=place, target_stride=block_bytes))
                back.append(route._replace(source=place, source_stride=block_bytes))
                place += route.size
            movers[MoveKind.SWAP_OUT] = BlockMover(out, device, same_pool=False)
            movers[MoveKind.SWAP_IN] = BlockMover(back, device, same_pool=False)
        return movers
