"""Blocks and states on pages of one memory: where each begins and ends, and that it stays so."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quire.core.errors import ConfigError
from quire.core.kv_groups import KVGroup
from quire.core.memory import BlockMove, KeptState, MoveKind
from quire.execution.kv.cache import KVCache
from quire.execution.kv.layers import bytes_per_token, rows_of, scale_bytes
from quire.execution.kv_bytes import shares
from quire.kernels.dispatch import choose_kernels
from quire.kernels.layer_memory import KVShape, LayerKV, StateShape
from quire.kernels.rounded_cache import FOUR_BITS
from quire.models.shape import CacheShape

SIZE, DRAFTS = 4, 2
VALUES, LATENT = KVShape(2, 32, 32), KVShape(1, 48, 32, latent=True)
STATE, INPUTS_ALONE = StateShape((6, 8), (3, 8, 8), 10), StateShape((6, 10), (), 10)


def on_pages(
    groups: list[KVGroup], shapes: Sequence[KVShape | StateShape], dtypes: Sequence[torch.dtype]
) -> list[KVGroup]:
    """Four of them, as they are cut for layers of these shapes."""
    kept, both = (
        (one.nbytes if isinstance(one, StateShape) else 0 for one in shapes),
        [*zip(shapes, dtypes, strict=True)],
    )
    cache = CacheShape(
        (),
        tuple(bytes_per_token([one], dtype) for one, dtype in both),
        0,
        depends_on_prompt_length=False,
        state_bytes=(*kept,),
        draft_bytes=tuple(one.draft_bytes if isinstance(one, StateShape) else 0 for one in shapes),
        scale_bytes=tuple(scale_bytes(*one) for one in both),
        rows=tuple(rows_of(*one) for one in both),
    )
    each = zip(groups, shares(groups, cache, SIZE), strict=True)
    return [
        one._replace(num_blocks=4 * share.per_page, share=share._replace(pages=4))
        for one, share in each
    ]


def make_cache(
    shapes: list[KVShape | StateShape], dtype: torch.dtype, path: str | None = None
) -> tuple[KVCache, list[KVGroup]]:
    paged = tuple(n for n, one in enumerate(shapes) if isinstance(one, KVShape))
    states = tuple(n for n, one in enumerate(shapes) if isinstance(one, StateShape))
    groups = [KVGroup(paged, 0, 3), KVGroup(states, 0, 3, state=KeptState(4, 4, DRAFTS))]
    groups = on_pages(groups, shapes, [dtype] * len(shapes))
    return KVCache(shapes, groups, SIZE, dtype, choose_kernels(torch.float32), path), groups


def span_of(part: Tensor, block: int) -> tuple[int, int]:
    own = part[block]
    assert own.is_contiguous()
    return own.data_ptr(), own.data_ptr() + own.nbytes


MODELS = {
    "values": [STATE, VALUES, STATE, STATE, VALUES],
    "latents": [STATE, LATENT, STATE],
    "convolutions": [VALUES, INPUTS_ALONE, VALUES, INPUTS_ALONE],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, FOUR_BITS], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_blocks_and_slots_fill_their_units_and_no_others(model: str, dtype: torch.dtype) -> None:
    shapes: list[KVShape | StateShape] = [*MODELS[model]]
    if dtype.itemsize == 1:  # of small rows, scales would be too large a part
        wide = KVShape(1, 288, 256, latent=True) if model == "latents" else KVShape(2, 512, 512)
        large = StateShape((60, 80), () if model == "convolutions" else (3, 8, 8))
        shapes = [wide if isinstance(one, KVShape) else large for one in shapes]
    cache, groups = make_cache(shapes, dtype)
    memory = cache._made[0]
    first, units = groups[0].share, memory.nbytes
    assert first is not None
    unit = units // first.num_units
    for group in groups:
        assert group.share is not None
        last = first.num_units - group.share.span
        for block in (0, 1, last):
            tiles = []
            for layer in (cache.layers[number] for number in group.layers):
                parts = layer.parts
                if isinstance(layer, LayerKV):
                    parts = [
                        one for one in parts if one.dtype != torch.float32 or dtype.itemsize > 1
                    ]
                    assert layer.key_scales is None or layer.block_rows == layer.key_scales.stride(
                        0
                    )
                tiles += [span_of(part, block) for part in parts]
            start = memory.data_ptr() + block * unit
            assert min(tiles)[0] == start and max(tiles)[1] <= start + group.share.span * unit
            assert all(a[1] == b[0] for a, b in pairwise(sorted(tiles)))
    if dtype.itemsize == 1:
        scaled = [one for one in cache.layers if isinstance(one, LayerKV)]
        scales = [s for one in scaled for s in (one.key_scales, one.value_scales) if s is not None]
        tiles = sorted(span_of(one, block) for one in scales for block in range(0, 8, first.span))
        assert all(a[1] <= b[0] for a, b in pairwise(tiles))


def test_what_is_moved_is_what_was_written(tmp_path: Path) -> None:
    cache, groups = make_cache([*MODELS["values"]], torch.bfloat16, str(tmp_path))
    assert groups[0].share is not None and groups[1].share is not None
    page, units = groups[0].share.units, groups[1].share.span
    paged, states = ([cache.layers[n] for n in group.layers] for group in groups)
    slot, block = page, 2 * page  # on pages of their own
    for number, part in enumerate(part for layer in states for part in layer.parts):
        part[slot] = number + 1
    for number, part in enumerate(part for layer in paged for part in layer.parts):
        part[block] = -number - 1
    moves = [
        BlockMove(MoveKind.SWAP_OUT, slot, 0, 1),
        BlockMove(MoveKind.COPY, block, slot),  # a page that goes from one to the other
        BlockMove(MoveKind.SWAP_OUT, block, 1),
        BlockMove(MoveKind.SWAP_IN, 0, block, 1),
        BlockMove(MoveKind.COPY, block, 3 * page, 1),
        BlockMove(MoveKind.SWAP_IN, 1, 0),
    ]
    assert cache.move(moves) == [] and units > 1
    for number, part in enumerate(part for layer in states for part in layer.parts):
        assert bool((part[3 * page] == number + 1).all() and (part[block] == number + 1).all())
    for number, part in enumerate(part for layer in paged for part in layer.parts):
        assert bool((part[0] == -number - 1).all() and (part[slot] == -number - 1).all())


def test_a_rank_whose_states_have_no_room_is_refused() -> None:
    _, groups = make_cache([*MODELS["latents"]], torch.float32)
    larger = STATE._replace(rows=(6, 2000))
    with pytest.raises(ConfigError, match=r"more than the [0-9,]+ that it has"):
        KVCache([STATE, LATENT, larger], groups, SIZE, torch.float32, choose_kernels(torch.float32))


LARGE, SMALL, UNEVEN = KVShape(1, 64, 64), KVShape(2, 32, 32), KVShape(2, 48, 32)
TOGETHER: dict[str, tuple[list[KVShape | StateShape], list[tuple[int, ...]]]] = {
    "windows": ([SMALL] * 5, [(0, 3), (1, 2, 4)]),
    "two sizes of heads": ([SMALL, LARGE, SMALL, LARGE], [(1, 3), (0, 2)]),
    "two sizes in one block": ([SMALL, LARGE, LARGE, SMALL], [(0, 1), (2, 3)]),
    "values smaller than keys": ([UNEVEN, KVShape(1, 96, 64), UNEVEN], [(0,), (1, 2)]),
    "latents beside heads": ([KVShape(1, 64, 32, latent=True), LARGE, LARGE], [(0,), (1, 2)]),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, FOUR_BITS], ids=str)
@pytest.mark.parametrize("model", TOGETHER)
def test_no_two_blocks_of_layers_lie_on_each_other(model: str, dtype: torch.dtype) -> None:
    """Each KV group has a page, with as many as go there; scales lie as far apart as rows."""
    shapes, layers = TOGETHER[model]
    groups = on_pages([KVGroup(own, 0) for own in layers], shapes, [dtype] * len(shapes))
    cache = KVCache(shapes, groups, SIZE, dtype, choose_kernels(torch.float32))
    tiles, whole = [], 0
    for page, group in enumerate(groups):
        share = group.share
        assert share is not None
        first = page * share.units
        blocks = range(first, first + share.per_page * share.span, share.span)
        for layer in (cache.layers[number] for number in group.layers):
            assert isinstance(layer, LayerKV)
            steps = {part.stride(0) // part.stride(2) for part in layer.parts}
            assert steps == {layer.block_rows}, "the kernels know of one"
            tiles += [span_of(part, block) for part in layer.parts for block in blocks]
        whole = share.num_units
    assert all(a[1] <= b[0] for a, b in pairwise(sorted(tiles)))
    pieces = [(one.data_ptr(), one.data_ptr() + one.nbytes) for one in cache._made]
    assert all(any(a <= start and end <= b for a, b in pieces) for start, end in tiles)
    if dtype.itemsize > 1:
        numbers = sum(one.nbytes for one in cache._made) // whole
        sizes = [sum(bytes_per_token([shapes[n]], dtype) for n in own) * SIZE for own in layers]
        assert [one.share and one.share.span * numbers for one in groups] == sizes


def test_a_rank_without_a_draft_model_has_the_same_blocks_of_less() -> None:
    """And of a KV group that is the draft model's alone, nothing."""
    shapes: list[KVShape | StateShape] = [VALUES, VALUES, LARGE, LARGE]
    kinds = [torch.bfloat16] * 2 + [torch.float32] * 2
    layers = [(0, 2), (1,), (3,)]
    groups = on_pages([KVGroup(own, 0) for own in layers], shapes, kinds)
    kernels = choose_kernels(torch.float32)
    both = KVCache(shapes, groups, SIZE, kinds, kernels)
    own = [one._replace(layers=tuple(n for n in one.layers if n < 2)) for one in groups]
    half = KVShape(1, 32, 32)
    alone = KVCache([half, half], own, SIZE, kinds[:2], kernels)
    assert alone.move([BlockMove(MoveKind.COPY, 0, 1, number) for number in range(3)]) == []
    assert [len(one.parts[0]) for one in alone.layers] == [
        len(one.parts[0]) for one in both.layers[:2]
    ]
    assert alone._made[0].nbytes == both._made[0].nbytes // 2
