"""The pool's tensors, allocated once, and the moves of whole blocks between them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from math import gcd, prod
from typing import TypeVar, cast

import torch
from torch import Tensor

from quire.core.errors import ConfigError
from quire.core.kv_groups import KVGroup
from quire.core.memory import BlockMove, BlockSource, Content, MoveKind
from quire.execution.kv.swap_file import BlockBytes, SwapFile
from quire.kernels.layer_memory import KVShape, LayerKV, LayerMemory, LayerState, StateShape
from quire.kernels.ops import Kernels
from quire.kernels.pages import HugePages, touch
from quire.kernels.rounded_cache import CODES_TOGETHER, FOUR_BITS

SCALE = torch.float32  # what a key or value of 8 or 4 bits is to be multiplied by

logger = logging.getLogger(__name__)

_Memory = TypeVar("_Memory", bound=LayerMemory)


def is_scaled(dtype: torch.dtype) -> bool:
    """Whether each key and value of such a cache has a scale."""
    return dtype.itemsize == 1


def is_spread(dtype: torch.dtype) -> bool:
    """Whether CPUs keep keys and values of such a cache spread (kernels/rounded_cache.py)."""
    return dtype in (torch.int8, FOUR_BITS)


def bytes_per_token(shapes: Sequence[KVShape | StateShape], dtype: torch.dtype) -> int:
    """KV bytes of one token over all layers."""
    return sum(
        shape.num_kv_heads * sum(_row_bytes(numbers, dtype) for numbers in shape.kept)
        + scale_bytes(shape, dtype)
        for shape in shapes
        if isinstance(shape, KVShape)
    )


def scale_bytes(shape: KVShape | StateShape, dtype: torch.dtype) -> int:
    """What of that is a layer's scales."""
    if not isinstance(shape, KVShape) or not is_scaled(dtype):
        return 0
    return SCALE.itemsize * shape.num_kv_heads * len(shape.kept)


def _row_bytes(numbers: int, dtype: torch.dtype) -> int:
    return numbers // 2 if dtype == FOUR_BITS else numbers * dtype.itemsize


def row_bytes(shapes: Sequence[KVShape | StateShape], dtype: torch.dtype) -> int:
    """Of a head's key, and its value, without scales; 0: these differ, or layers."""
    kept = [shape.kept for shape in shapes if isinstance(shape, KVShape)]
    sizes = {_row_bytes(numbers, dtype) for own in kept for numbers in own}
    return sizes.pop() if len(sizes) == 1 and len({*map(len, kept)}) == 1 else 0


def check_heads(shapes: Sequence[KVShape | StateShape], dtype: torch.dtype) -> None:
    """ConfigError if there is no cache of this type for heads of these sizes."""
    kept = [shape for shape in shapes if isinstance(shape, KVShape)]
    for size in (size for shape in kept for size in shape.kept):
        if dtype == FOUR_BITS and size % CODES_TOGETHER:
            raise ConfigError(
                f'kv_cache_dtype "int4" needs heads of a multiple of {CODES_TOGETHER} numbers; '
                f'the model has heads of {size}; "int8" takes any'
            )


def place_layers(
    shapes: Sequence[KVShape | StateShape],
    kv_groups: Sequence[KVGroup],
    make: Callable[[int, int, int], _Memory],
    zeros: Callable[[int], Tensor],
) -> list[_Memory]:
    """The memory of each layer: its own, or a lane of what KV groups share.

    In a lane a block of ``span`` units holds a block of as many of the smallest layers, or of fewer
    larger ones, the first one's at the block's number; so each sees a pool of its own that begins
    some units later.

    make: the memory of a layer, with that number of blocks, in a KV group.
    zeros: that number of scales. Layers that have others than a lane's first one have a lane of
        scales for themselves.
    """
    layers: dict[int, _Memory] = {}
    lanes: dict[int, _Memory] = {}
    rescaled: dict[tuple[int, int], LayerKV] = {}
    num_lanes = gcd(*(len(kv_group.layers) for kv_group in kv_groups))
    sizes = [_units_of_a_layer(kv_group, num_lanes) for kv_group in kv_groups]
    for number in sorted(range(len(kv_groups)), key=sizes.__getitem__):
        kv_group, size = kv_groups[number], sizes[number]
        for place, layer in enumerate(kv_group.layers):
            if kv_group.share is None:
                layers[layer] = make(layer, kv_group.num_blocks, number)
                continue
            lane, first = divmod(place * size, kv_group.share.span)
            if lane not in lanes:
                lanes[lane] = make(layer, kv_group.share.num_units, number)
            shared, shape = lanes[lane], shapes[layer]
            assert isinstance(shared, LayerKV) and isinstance(shape, KVShape), "only these share"
            memory: LayerKV = shared
            heads = shape.num_kv_heads
            if memory.key_scales is not None and heads != size * memory.key_scales.shape[1]:
                if (lane, number) not in rescaled:
                    rescaled[lane, number] = memory.with_scales(heads, size, zeros)
                memory = rescaled[lane, number]
            layers[layer] = cast(_Memory, memory.at(first, number, heads, size))
    return [layers[layer] for layer in range(len(layers))]


def _units_of_a_layer(kv_group: KVGroup, num_lanes: int) -> int:
    """How many of the smallest layers' blocks one of its layers' is as large as."""
    share = kv_group.share
    return 1 if share is None else share.span * num_lanes // len(kv_group.layers)


class SharedBytes:
    """The memory of pages that layers with keys and values share with others that keep states.

    It is one piece of bytes. A block of a KV group has those of its layers one after the other,
    from the block's unit on; so each layer sees a pool of its own that begins some bytes later.
    Scales lie beside them, one for each row of a unit.
    """

    def __init__(
        self,
        shapes: Sequence[KVShape | StateShape],
        kv_groups: Sequence[KVGroup],
        block_size: int,
        dtype: torch.dtype,
        zeros: Callable[[int, torch.dtype], Tensor],
    ) -> None:
        """zeros: so many numbers of a type."""
        self._shapes, self._kv_groups, self._block_size = shapes, kv_groups, block_size
        self._kept = torch.uint8 if dtype == FOUR_BITS else dtype
        self._row = row_bytes(shapes, dtype)
        first = kv_groups[0].share
        assert first is not None, "all of them share"
        self._units = first.num_units
        self._unit = sum(self._bytes_of(layer, 0) for layer in kv_groups[0].layers) // first.span
        self._bytes = zeros(self._units * self._unit, torch.uint8)
        self._scales: Tensor | None = None
        if is_scaled(dtype):
            self._scales = zeros(self._units * self._unit // self._row, SCALE)

    def layers(self) -> list[LayerMemory]:
        made: dict[int, LayerMemory] = {}
        for number, kv_group in enumerate(self._kv_groups):
            assert kv_group.share is not None, "all of them share"
            drafts = 0 if kv_group.state is None else kv_group.state.drafts
            count, place = self._units - kv_group.share.span + 1, 0
            for layer in kv_group.layers:
                shape = self._shapes[layer]
                if isinstance(shape, StateShape):
                    made[layer] = self._state(shape, count, place, drafts)
                else:
                    made[layer] = self._values(shape, count, place, number)
                place += self._bytes_of(layer, drafts)
            if place > kv_group.share.span * self._unit:
                raise ConfigError(
                    f"a block of KV group {number} takes {place:,} bytes on this rank, more than "
                    f"the {kv_group.share.span * self._unit:,} that it has of pages"
                )
        return [made[layer] for layer in range(len(made))]

    def _bytes_of(self, layer: int, drafts: int) -> int:
        """Of what a layer has of a block, without scales."""
        shape = self._shapes[layer]
        if isinstance(shape, StateShape):
            return shape.nbytes + drafts * shape.draft_bytes
        return self._block_size * shape.num_kv_heads * len(shape.kept) * self._row

    def _state(self, shape: StateShape, count: int, place: int, drafts: int) -> LayerState:
        parts = []
        for form in (shape.rows, shape.state or (0,), (drafts, shape.columns)):
            parts.append(self._seen(self._bytes, torch.float32, self._unit, (count, *form), place))
            place += prod(form) * torch.float32.itemsize
        return LayerState(*parts)

    def _values(self, shape: KVShape, count: int, place: int, number: int) -> LayerKV:
        form = count, shape.num_kv_heads, self._block_size
        each = prod(form[1:]) * self._row  # bytes of keys, and of values
        tiles = iter([place, place + each])

        def numbers(width: int) -> Tensor:
            tile = (*form, self._row // self._kept.itemsize if width else 0)
            return self._seen(self._bytes, self._kept, self._unit, tile, next(tiles))

        rows = iter([place, place + each])

        def scales() -> Tensor | None:
            if self._scales is None:
                return None
            size, step = SCALE.itemsize, self._unit // self._row
            return self._seen(
                self._scales, SCALE, step * size, form, next(rows) // self._row * size
            )

        return LayerKV.of(shape, numbers, number, scales)

    @staticmethod
    def _seen(
        memory: Tensor, dtype: torch.dtype, step: int, form: tuple[int, ...], place: int
    ) -> Tensor:
        """What begins ``place`` bytes from each unit of ``step`` bytes on."""
        numbers = memory.view(dtype)
        steps = [prod(form[at:]) for at in range(2, len(form) + 1)]
        start = numbers.storage_offset() + place // dtype.itemsize
        if not prod(form):
            return numbers.new_empty(form)
        return numbers.as_strided(form, (step // dtype.itemsize, *steps), start)


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

        def make(layer: int, num_blocks: int, kv_group: int) -> LayerMemory:
            state = kv_groups[kv_group].state
            counts = num_blocks, block_size, 0 if state is None else state.drafts
            own = _layer(shapes[layer], counts, dtypes[layer], kv_group, memory)
            self._made.extend(own.parts)
            return own

        def zeros(count: int, kind: torch.dtype) -> Tensor:
            self._made.append(memory.zeros((count,), kind))
            return self._made[-1]

        last = kv_groups[-1] if kv_groups else None
        if last is not None and last.share is not None and last.state is not None:
            shared = SharedBytes(shapes, kv_groups, block_size, dtypes[0], zeros)
            self.layers = shared.layers()
        else:
            self.layers = place_layers(shapes, kv_groups, make, lambda n: zeros(n, SCALE))
        self._kv_groups = [
            [self.layers[layer] for layer in kv_group.layers] for kv_group in kv_groups
        ]
        self._num_paged = sum(kv_group.state is None for kv_group in kv_groups)
        self._blocks = [BlockBytes(layers) for layers in self._kv_groups]
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
        """Carry out moves in their order, neighbours of one kind together; those that failed."""
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
        blocks = self._blocks[move.kv_group]
        try:
            self._source.read(content, move.kv_group, blocks.of(move.target))
        except OSError:
            blocks.blank(move.target)
            raise

    def _store(self, move: BlockMove, content: Content) -> None:
        """With the last KV group's block of a content, which comes last, it is complete. A state is
        complete alone, and has no other parts.
        """
        if self._source is None:
            raise ValueError("there is nothing beyond the pool to store blocks in")
        part, paged = b"".join(self._blocks[move.kv_group].of(move.source)), self._num_paged
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


def _layer(
    shape: KVShape | StateShape,
    counts: tuple[int, int, int],
    dtype: torch.dtype,
    kv_group: int,
    memory: HugePages,
) -> LayerMemory:
    """counts: of blocks, of the tokens of one, of a state's drafts."""
    num_blocks, block_size, drafts = counts
    if isinstance(shape, StateShape):
        sizes = (shape.rows, shape.state or (0,), (drafts, shape.columns))
        return LayerState(*(memory.zeros((num_blocks, *one), torch.float32) for one in sizes))
    rows = (num_blocks, shape.num_kv_heads, block_size)
    kept = torch.uint8 if dtype == FOUR_BITS else dtype
    return LayerKV.of(
        shape,
        lambda count: memory.zeros((*rows, _row_bytes(count, dtype) // kept.itemsize), kept),
        kv_group,
        lambda: memory.zeros(rows, SCALE) if is_scaled(dtype) else None,
    )
