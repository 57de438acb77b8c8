"""The pool's tensors, allocated once, and the moves of whole blocks between them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from quire.core.kv_groups import KVGroup
from quire.core.memory import BlockMove, BlockSource, Content, MoveKind
from quire.execution.kv.layers import layers_of
from quire.execution.kv.swap_file import BlockBytes, SwapFile
from quire.kernels.layer_memory import KVShape, StateShape, without_drafts
from quire.kernels.ops import Kernels
from quire.kernels.pages import HugePages, touch

logger = logging.getLogger(__name__)


class KVCache:
    """Keys and values of all layers, in blocks of ``block_size`` tokens, so many for each KV group.

    Where layers keep states, a block of their KV group is a slot: the states of one sequence.

    A KV group's host blocks are in a file in the directory ``swap_path``; a block that comes back
    from there different is a move that failed. So is one that ``source`` does not have.
    """

    def __init__(
        self,
        shapes: Sequence[KVShape | StateShape],
        kv_groups: Sequence[KVGroup],
        block_size: int,
        dtype: torch.dtype | Sequence[torch.dtype],
        kernels: Kernels,
        swap_path: str | None = None,
        source: BlockSource | None = None,
    ) -> None:
        """dtype: of all layers, or by layer."""
        self.block_size = block_size
        dtypes = [dtype] * len(shapes) if isinstance(dtype, torch.dtype) else dtype
        memory = HugePages()
        self._made: list[Tensor] = []

        def zeros(count: int, kind: torch.dtype) -> Tensor:
            self._made.append(memory.zeros((count,), kind))
            return self._made[-1]

        self.layers = layers_of(shapes, kv_groups, block_size, dtypes, zeros)
        self._kv_groups = [
            [self.layers[layer] for layer in kv_group.layers] for kv_group in kv_groups
        ]
        self._num_paged = sum(kv_group.state is None for kv_group in kv_groups)
        self._blocks = [BlockBytes(layers) for layers in self._kv_groups]
        # Beyond the pool there is nothing of drafts: a state with a name has seen what it says.
        self._kept = [BlockBytes([*map(without_drafts, layers)]) for layers in self._kv_groups]
        self._kernels = kernels
        self._source = source
        self._parts: list[bytes] = []  # of the block that is being stored, by KV group
        self.swap_files = [  # by KV group; None: it has no host blocks
            SwapFile(swap_path, kv_group.num_host_blocks, blocks)
            if kv_group.num_host_blocks
            else None
            for kv_group, blocks in zip(kv_groups, self._blocks, strict=True)
        ]

    def touch(self) -> None:
        """Take all of the pool's memory now, which else the system gives as it is written."""
        for tensor in self._made:
            touch(tensor)

    def move(self, moves: Sequence[BlockMove]) -> list[BlockMove]:
        """Carry out moves in order, neighbours of one kind together; return those that failed."""
        failed: list[tuple[BlockMove, OSError]] = []
        for (kind, kv_group), run in groupby(moves, key=lambda move: (move.kind, move.kv_group)):
            if kind is MoveKind.COPY:
                layers, pairs = (
                    self._kv_groups[kv_group],
                    [(move.source, move.target) for move in run],
                )
                self._kernels.copy_blocks(layers, layers, pairs)
                continue
            for move in run:
                try:
                    self._carry(move)
                except OSError as error:
                    failed.append((move, error))
        if failed:
            logger.warning(
                "%d of a step's blocks could not be moved and will be computed again: %s",
                len(failed),
                failed[0][1],
            )
        return [move for move, _ in failed]

    def _carry(self, move: BlockMove) -> None:
        if move.content is None:
            self._swap(move)
        elif move.kind is MoveKind.FETCH:
            self._fetch(move, move.content)
        else:
            self._store(move, move.content)

    def _fetch(self, move: BlockMove, content: Content) -> None:
        if self._source is None:
            raise ValueError("there is nothing beyond the pool to fetch blocks from")
        blocks = self._kept[move.kv_group]
        try:
            self._source.read(content, move.kv_group, blocks.of(move.target))
        except OSError:
            blocks.blank(move.target)
            raise

    def _store(self, move: BlockMove, content: Content) -> None:
        """Store one KV group's block of a content: the last group's block completes it.

        A state is complete by itself, and has no other parts.
        """
        if self._source is None:
            raise ValueError("there is nothing beyond the pool to store blocks in")
        part, paged = b"".join(self._kept[move.kv_group].of(move.source)), self._num_paged
        if move.kv_group == paged:
            self._source.write(content, [*[b""] * paged, part])
            return
        self._parts[move.kv_group :] = [part]
        if len(self._parts) == paged:
            missing = [b""] * (len(self._kv_groups) - paged)
            self._source.write(content, self._parts + missing)
            self._parts = []

    def _swap(self, move: BlockMove) -> None:
        swap_file = self.swap_files[move.kv_group]
        if swap_file is None:
            raise ValueError(
                f"KV group {move.kv_group} has no host blocks, so it cannot {move.kind.value}"
            )
        if move.kind is MoveKind.SWAP_OUT:
            swap_file.write(move.target, move.source)
        else:
            swap_file.read(move.source, move.target)
