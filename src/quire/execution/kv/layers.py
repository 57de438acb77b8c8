"""What layers keep, and where: in memory of their own, or on pages that their KV groups share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import lcm, prod

import torch
from torch import Tensor

from quire.core.errors import ConfigError
from quire.core.kv_groups import KVGroup
from quire.execution.kv_bytes import Planes
from quire.kernels.layer_memory import KVShape, LayerKV, LayerMemory, LayerState, StateShape
from quire.kernels.rounded_cache import CODES_TOGETHER, FOUR_BITS

_FLOAT = torch.float32  # scales, which keys and values of 8 or 4 bits are multiplied by; states


def is_scaled(dtype: torch.dtype) -> bool:
    """Whether each key and value of such a cache has a scale."""
    return dtype.itemsize == 1


def is_spread(dtype: torch.dtype) -> bool:
    """Whether CPUs keep keys and values of such a cache spread (kernels/rounded_cache.py)."""
    return dtype in (torch.int8, FOUR_BITS)


def index_type(dtype: torch.dtype) -> torch.dtype:
    """The type of keys by which tokens are chosen, in a cache of that type."""
    return torch.int8 if dtype == FOUR_BITS else dtype


def bytes_per_token(shapes: Sequence[KVShape | StateShape], dtype: torch.dtype) -> int:
    """KV bytes of one token over all layers."""
    return sum(
        shape.num_kv_heads * sum(rows_of(shape, dtype)) + scale_bytes(shape, dtype)
        for shape in shapes
        if isinstance(shape, KVShape)
    )


def scale_bytes(shape: KVShape | StateShape, dtype: torch.dtype) -> int:
    """KV bytes of one token that are a layer's scales."""
    if not isinstance(shape, KVShape) or not is_scaled(dtype):
        return 0
    return _FLOAT.itemsize * shape.num_kv_heads * len(shape.kept)


def _row_bytes(numbers: int, dtype: torch.dtype) -> int:
    return numbers // 2 if dtype == FOUR_BITS else numbers * dtype.itemsize


def rows_of(shape: KVShape | StateShape, dtype: torch.dtype) -> tuple[int, ...]:
    """Bytes of a head's key, and of its value if that is kept, without scales; none of states."""
    kept = shape.kept if isinstance(shape, KVShape) else ()
    rows = tuple(_row_bytes(numbers, dtype) for numbers in kept)
    if isinstance(shape, KVShape) and shape.index_dim:  # never of fewer than 8 bits
        return rows[0], shape.index_dim * index_type(dtype).itemsize
    return rows


def check_heads(shapes: Sequence[KVShape | StateShape], dtype: torch.dtype) -> None:
    """ConfigError if there is no cache of this type for heads of these sizes."""
    kept = [shape for shape in shapes if isinstance(shape, KVShape)]
    for size in (size for shape in kept for size in shape.kept[: 1 if shape.index_dim else 2]):
        if dtype == FOUR_BITS and size % CODES_TOGETHER:
            raise ConfigError(
                f'kv_cache_dtype "int4" needs heads of a multiple of {CODES_TOGETHER} numbers; '
                f'the model has heads of {size}; "int8" takes any'
            )


Zeros = Callable[[int, torch.dtype], Tensor]
"""Makes so many numbers of a type, in one piece."""


def layers_of(
    shapes: Sequence[KVShape | StateShape],
    kv_groups: Sequence[KVGroup],
    block_size: int,
    dtypes: Sequence[torch.dtype],
    zeros: Zeros,
) -> list[LayerMemory]:
    """The memory of each layer, which keeps numbers of its type."""
    memory = _OwnMemory(zeros)
    if kv_groups and kv_groups[0].share is not None:
        memory = _PagedMemory(zeros, shapes, kv_groups, block_size, dtypes)
    made: dict[int, LayerMemory] = {}
    for number, kv_group in enumerate(kv_groups):
        memory.begin(kv_group)
        for layer in kv_group.layers:
            shape, dtype = shapes[layer], dtypes[layer]
            if isinstance(shape, KVShape):
                made[layer] = _values(shape, block_size, dtype, number, memory)
            else:
                forms = _forms(shape, kv_group)
                made[layer] = LayerState(*(memory.numbers(0, _FLOAT, one) for one in forms))
    return [made[layer] for layer in range(len(made))]


def _values(
    shape: KVShape, block_size: int, dtype: torch.dtype, kv_group: int, memory: _OwnMemory
) -> LayerKV:
    tile = shape.num_kv_heads, block_size
    kept = [torch.uint8 if dtype == FOUR_BITS else dtype] * 2
    if shape.index_dim:
        kept[1] = index_type(dtype)
    numbers: list[Tensor] = []
    scales: list[Tensor | None] = []
    for plane, row in enumerate(rows_of(shape, dtype)):
        scales.append(memory.scales(plane, tile, row) if is_scaled(dtype) else None)
        numbers.append(memory.numbers(plane, kept[plane], (*tile, row // kept[plane].itemsize)))
    if not shape.latent:
        (keys, values), (own, others) = numbers, scales
        return LayerKV(keys, values, kv_group, own, others)
    keys, own = numbers[0], scales[0]
    made = LayerKV(keys, keys[..., :0], kv_group, own, None, shape.value_dim, shape.in_rows)
    if not shape.index_dim:
        return made
    return made._replace(index_keys=numbers[1], index_scales=scales[1])


def _forms(shape: StateShape, kv_group: KVGroup) -> list[tuple[int, ...]]:
    """The shapes of the parts of a slot."""
    drafts = 0 if kv_group.state is None else kv_group.state.drafts
    return [shape.rows, shape.state or (0,), (drafts, shape.columns)]


class _OwnMemory:
    """Memory of each layer's own."""

    def __init__(self, zeros: Zeros) -> None:
        self._zeros = zeros
        self._count = 0

    def begin(self, kv_group: KVGroup) -> None:
        """Begin with the layers of ``kv_group``, which come in their order."""
        self._count = kv_group.num_blocks

    def numbers(self, plane: int, dtype: torch.dtype, form: tuple[int, ...]) -> Tensor:
        """The next of a layer's tensors; ``form``: of a block."""
        return self._zeros(self._count * prod(form), dtype).view(self._count, *form)

    def scales(self, plane: int, tile: tuple[int, ...], row: int) -> Tensor:
        """Scales of the numbers that come next, whose rows have ``row`` bytes."""
        return self.numbers(plane, _FLOAT, tile)


class _PagedMemory(_OwnMemory):
    """Memory of pages that KV groups share, in one piece for each plane.

    A block of a KV group has those of its layers one after the other, from the block's unit on; so
    each layer sees a pool of its own that begins some bytes later. Scales lie beside, one for each
    row of a unit.
    """

    def __init__(
        self,
        zeros: Zeros,
        shapes: Sequence[KVShape | StateShape],
        kv_groups: Sequence[KVGroup],
        block_size: int,
        dtypes: Sequence[torch.dtype],
    ) -> None:
        """ConfigError where states are larger than slots, as on a rank that has all of them."""
        super().__init__(zeros)
        rows = [rows_of(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        planes, unit = Planes(filter(None, rows), ()), 0
        step = lcm(planes.step, *(_FLOAT.itemsize for one in kv_groups if one.state is not None))
        for number, kv_group in enumerate(kv_groups):
            assert kv_group.share is not None and planes.parts, "all of them share"
            own, span = 0, kv_group.share.span
            for layer in kv_group.layers:
                shape = shapes[layer]
                if isinstance(shape, KVShape):
                    own += block_size * shape.num_kv_heads * sum(rows[layer])
                else:
                    own += sum(_FLOAT.itemsize * prod(form) for form in _forms(shape, kv_group))
            # Without a draft model's layers some have less than others.
            unit = max(unit, -(-own // (span * step)) * step)
            if unit > kv_group.share.unit_bytes:
                raise ConfigError(
                    f"a block of KV group {number} takes {own:,} bytes on this rank, more than "
                    f"the {span * kv_group.share.unit_bytes:,} that it has of pages"
                )
            self._units = kv_group.share.num_units
        self._steps = [unit * part // sum(planes.parts) for part in planes.parts]
        self._planes = [zeros(self._units * step, torch.uint8) for step in self._steps]
        self._scales: dict[tuple[int, int], Tensor] = {}
        self._places = [0] * len(self._planes)

    def begin(self, kv_group: KVGroup) -> None:
        assert kv_group.share is not None, "all of them share"
        self._count = self._units - kv_group.share.span + 1
        self._places = [0] * len(self._planes)

    def numbers(self, plane: int, dtype: torch.dtype, form: tuple[int, ...]) -> Tensor:
        plane %= len(self._planes)
        place = self._places[plane]
        self._places[plane] += prod(form) * dtype.itemsize
        return self._seen(self._planes[plane].view(dtype), self._steps[plane], form, place)

    def scales(self, plane: int, tile: tuple[int, ...], row: int) -> Tensor:
        plane %= len(self._planes)
        step = self._steps[plane] // row * _FLOAT.itemsize
        if (plane, row) not in self._scales:
            self._scales[plane, row] = self._zeros(self._units * self._steps[plane] // row, _FLOAT)
        place = self._places[plane] // row * _FLOAT.itemsize
        return self._seen(self._scales[plane, row], step, tile, place)

    def _seen(self, memory: Tensor, step: int, form: tuple[int, ...], place: int) -> Tensor:
        """A view of blocks that are ``step`` bytes apart, from ``place`` bytes within the first."""
        form = self._count, *form
        if not prod(form):
            return memory.new_empty(form)
        size = memory.itemsize
        steps = [step // size, *(prod(form[at:]) for at in range(2, len(form) + 1))]
        return memory.as_strided(form, steps, memory.storage_offset() + place // size)
