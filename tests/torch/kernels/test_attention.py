"""Attention of all kernels equals softmax attention in float64 over contiguous keys and values.

Once for each instruction set that this machine has.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quire.kernels import reference
from quire.kernels.cpu import DTYPES, CPUKernels
from quire.kernels.layer_memory import LayerKV
from quire.kernels.ops import AttentionSpec, Kernels, Norm, Rotation
from quire.kernels.reference import ReferenceKernels
from quire.kernels.rounded_cache import spread
from support.attention_cases import RAGGED, Case, attend, biased, make_case, plain
from support.every_kernel import TRITON, TYPED, with_types
from support.instruction_sets import TESTED
from support.kv_tiles import numbers, to_tiles

pytestmark = pytest.mark.usefixtures("poisoned_memory")

ON_CPUS = [one for one in TYPED if one[0] not in TRITON]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def assert_equal_to_plain(kernels: Kernels, case: Case, spec: AttentionSpec) -> None:
    found, expected = attend(kernels, case, spec), plain(case, spec)
    assert found.dtype == case.query.dtype
    assert found.shape == expected.shape
    assert (found.double() - expected).abs().max() < TOLERANCE[found.dtype]


@with_types
@pytest.mark.parametrize(
    ("heads", "dims"),
    [
        ((4, 4), (80, 80)),
        ((8, 2), (16, 16)),
        ((6, 1), (24, 16)),
        ((9, 3), (64, 64)),
        ((1, 1), (7, 5)),
    ],
    ids=str,
)
@pytest.mark.parametrize("block_size", [1, 4, 16, 256])
def test_mixed_batch(
    kernels: Kernels,
    dtype: torch.dtype,
    heads: tuple[int, int],
    dims: tuple[int, int],
    block_size: int,
) -> None:
    case = make_case(dtype, heads, dims, block_size)
    for window, by_chunks, softcap in (
        (None, False, None),
        (1, False, 3.0),
        (7, False, None),
        (7, True, None),
        (64, False, 3.0),
    ):
        spec = AttentionSpec(dims[0] ** -0.5, window, softcap=softcap, by_chunks=by_chunks)
        assert_equal_to_plain(kernels, case, spec)


@with_types
@pytest.mark.parametrize("dim", [32, 96, 128, 256])
def test_head_sizes(kernels: Kernels, dtype: torch.dtype, dim: int) -> None:
    case = make_case(dtype, (7, 1), (dim, dim), 16, ((20, 1), (70, 33)))
    assert_equal_to_plain(kernels, case, AttentionSpec(dim**-0.5))


@with_types
@pytest.mark.parametrize("ragged", [RAGGED, ((700, 1), (300, 20))], ids=["short", "long"])
def test_a_key_that_all_see_and_that_has_no_value(
    kernels: Kernels, dtype: torch.dtype, ragged: tuple[tuple[int, int], ...]
) -> None:
    case = make_case(dtype, (6, 2), (64, 64), 16, ragged)
    for logits in (torch.linspace(-3, 6, 6), torch.tensor([-300.0, 300, 0, -1e-3, 100, -100])):
        for window in (None, 7):
            spec = AttentionSpec(0.125, window, sink_logits=logits)
            assert_equal_to_plain(kernels, case, spec)


@pytest.mark.parametrize(("kernels", "dtype"), ON_CPUS, indirect=["kernels"], ids=str)
@pytest.mark.parametrize("ragged", [RAGGED, ((700, 1), (300, 20))], ids=["short", "long"])
def test_something_is_added_to_scores_by_where_the_key_stands(
    kernels: Kernels, dtype: torch.dtype, ragged: tuple[tuple[int, int], ...]
) -> None:
    for block_size, window, sinks, softcap, logits in (
        (4, None, 0, 3.0, torch.linspace(-3, 6, 6)),
        (16, None, 0, None, None),
        (16, 20, 6, 3.0, None),
    ):
        case = make_case(dtype, (6, 2), (64, 40), block_size, ragged, sinks, window)
        spec = AttentionSpec(0.125, window, sinks, softcap, sink_logits=logits)
        assert_equal_to_plain(kernels, biased(case), spec)


@with_types
@pytest.mark.parametrize("kv_dtype", [*DTYPES, torch.int8, torch.int4], ids=str)
@pytest.mark.parametrize("block_size", [1, 16])
def test_the_cache_may_have_another_type(
    kernels: Kernels, dtype: torch.dtype, kv_dtype: torch.dtype, block_size: int
) -> None:
    """What was stored is near the new keys and values; attention is that over what was stored."""
    triton = not isinstance(kernels, (CPUKernels, ReferenceKernels))
    if triton and kv_dtype == torch.int4:
        pytest.skip("refused on GPUs")
    ragged = tuple((context, context) for context, _ in RAGGED)
    case = make_case(dtype, (6, 2), (40, 24), block_size, ragged)
    rows, four = case.kv.keys.shape[:3], kv_dtype == torch.int4
    rounded = four or kv_dtype == torch.int8
    scales = [torch.full(rows, torch.nan) for _ in range(2 if rounded else 0)]
    pools = [
        torch.zeros((*rows, dim // 2), dtype=torch.uint8)
        if four
        else torch.full((*rows, dim), torch.nan).to(kv_dtype)
        for dim in (40, 24)
    ]
    kv = LayerKV(*pools, 0, *scales)
    found = attend(kernels, replace(case, kv=kv), AttentionSpec(0.15), kv=kv)
    slots = case.batch.kv_groups[0].slots
    where = slots // block_size, slice(None), slots % block_size
    stored = []
    held = zip(numbers(kv, not triton), (case.keys, case.values), strict=True)
    for i, (pool, of) in enumerate(held):
        kept, new = pool[where], case.new(of).double()
        apart, flat = kept - new, new
        if rounded and not triton:
            apart, flat = spread(apart), spread(flat)
        if four:
            lost = apart.square().sum(dim=2) / flat.square().sum(dim=2)
            assert lost.max() < 0.04
            assert lost.mean() < 0.012  # Max's quantiser of 16 levels: 0.0095
            assert ((kept - new) * kept).sum(dim=2).abs().max() < 1e-2  # a scale is the best
        elif rounded:
            scale = scales[i][where].double()[..., None]
            assert (apart.abs() <= scale * 0.501).all()
            assert torch.allclose(scale * 127, flat.abs().amax(dim=2, keepdim=True))
        else:
            assert torch.allclose(kept, new, rtol=torch.finfo(kv_dtype).eps, atol=1e-7)
        stored.append(list(kept.split([context for context, _ in ragged])))
    expected = plain(replace(case, keys=stored[0], values=stored[1]), AttentionSpec(0.15))
    assert (found.double() - expected).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 1500])
def test_long_contexts_are_divided_among_threads(
    kernels: Kernels, threads: int, dtype: torch.dtype, window: int | None
) -> None:
    torch.set_num_threads(threads)
    try:
        for ragged in (((3000, 1),), ((3000, 1), (40, 1), (900, 1)), ((2500, 5), (600, 200))):
            case = make_case(dtype, (9, 3), (64, 64), 16, ragged)
            for _ in range(2):  # counters of parts are used again
                assert_equal_to_plain(kernels, case, AttentionSpec(0.125, window))
    finally:
        torch.set_num_threads(1)


def test_a_block_may_be_read_in_the_step_that_fills_it(kernels: Kernels) -> None:
    """Equal prompts of one step share blocks: here the last token of the first one's only block."""
    case = make_case(ragged=((4, 1), (5, 1)))
    tables = case.batch.kv_groups[0].block_tables
    tables[1, 0] = tables[0, 0]
    for of in (case.keys, case.values):
        of[1][:4] = of[0]
    assert_equal_to_plain(kernels, case, AttentionSpec(0.25))


@pytest.mark.parametrize("ragged", [((7, 1),), ((7, 7),), ((6, 1), (9, 1)), ((6, 3), (9, 4))])
def test_batches_of_one_kind(kernels: Kernels, ragged: tuple[tuple[int, int], ...]) -> None:
    assert_equal_to_plain(kernels, make_case(ragged=ragged), AttentionSpec(0.25))


@pytest.mark.parametrize("elements", [1, 300, 2000])
def test_slices_make_no_difference(
    kernels: Kernels, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "_SLICE_ELEMENTS", elements)
    for window in (None, 6):
        assert_equal_to_plain(kernels, make_case(), AttentionSpec(0.25, window))


@pytest.mark.parametrize("block_size", [4, 16])
def test_new_keys_and_values_are_written_and_nothing_else(
    kernels: Kernels, block_size: int
) -> None:
    case = make_case(block_size=block_size)
    before = case.kv.keys.clone()
    keys, values = case.new(case.keys), case.new(case.values)
    attend(kernels, case, AttentionSpec(0.25), kv=case.kv)
    size = case.batch.block_size
    blocks, offsets = case.batch.kv_groups[0].slots // size, case.batch.kv_groups[0].slots % size
    assert torch.equal(case.kv.keys[blocks, :, offsets], keys)
    assert torch.equal(case.kv.values[blocks, :, offsets], values)
    case.kv.keys[blocks, :, offsets] = before[blocks, :, offsets]
    assert torch.equal(case.kv.keys.nan_to_num(), before.nan_to_num())


def test_a_plan_serves_layers_with_different_windows(kernels: Kernels) -> None:
    case = make_case()
    plan, kv = kernels.plan(case.batch), to_tiles(kernels, case.kv)
    for window in (None, 5):
        spec = AttentionSpec(0.25, window)
        found = kernels.attend(
            case.query, case.new(case.keys), case.new(case.values), kv, spec, plan
        )
        assert (found.double() - plain(case, spec)).abs().max() < 1e-5


@pytest.mark.parametrize("sinks", [0, 1, 4, 6])
@pytest.mark.parametrize("window", [1, 4, 8, 40])
def test_blocks_between_sinks_and_window_are_not_there(
    kernels: Kernels, sinks: int, window: int
) -> None:
    """They may have been given back; only what is still seen is in the tables."""
    ragged = ((30, 1), (3, 1), (30, 3), (50, 20), (9, 9), (57, 1), (6, 2))
    case = make_case(ragged=ragged, sinks=sinks, window=window)
    assert_equal_to_plain(kernels, case, AttentionSpec(0.25, window, sinks))


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """x [T, heads, D] as complex numbers, multiplied by e^(i angle); angles are [T, R]."""
    half = angles.shape[1]
    pairs = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double())
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((pairs.real, pairs.imag, x[..., 2 * half :].double()), dim=-1)


@pytest.mark.parametrize(("kv_dtype", "error"), [(torch.int8, 0.01), (torch.int4, 0.15)], ids=str)
@pytest.mark.parametrize("kernels", ["reference", *TESTED], indirect=True)
def test_what_norms_make_large_is_rounded_with_the_rest(
    kernels: Kernels, kv_dtype: torch.dtype, error: float
) -> None:
    """Of keys, that is; their queries are small there, so that it counts no more than others."""
    case = make_case(torch.float32, (4, 2), (64, 64), 16, ((90, 90), (40, 40)))
    large = torch.ones(64)
    large[[3, 35, 50, 18]] = 40.0  # two of the pairs that are turned together
    norms = Norm(64, 1 / large, 1e-6), Norm(64, large, 1e-6)
    angles = torch.arange(len(case.query))[:, None] * torch.logspace(0, -3, 32, dtype=torch.float64)
    rotation = Rotation(angles.cos().float(), angles.sin().float())
    rows, width = case.kv.keys.shape[:3], 32 if kv_dtype == torch.int4 else 64
    kept = torch.uint8 if kv_dtype == torch.int4 else kv_dtype
    pools = (torch.zeros((*rows, width), dtype=kept) for _ in range(2))
    kv = LayerKV(*pools, 0, torch.zeros(rows), torch.zeros(rows))
    spec = AttentionSpec(0.125, query_norm=norms[0], key_norm=norms[1])
    found = attend(kernels, replace(case, kv=kv), spec, rotation, kv=kv)
    exact = attend(ReferenceKernels(), case, spec, rotation)
    assert (found - exact).square().mean() < error**2 * exact.square().mean()


@pytest.mark.parametrize("kernels", ["reference", *TESTED], indirect=True)
@pytest.mark.parametrize("place", [0, 19, 23])  # heads of 24: in a whole vector or behind it
def test_a_key_that_is_no_number_is_none_in_a_pool_of_bytes(kernels: Kernels, place: int) -> None:
    case = make_case(torch.float32, (2, 1), (24, 24), 16, ((9, 9), (5, 5)))
    rows = case.kv.keys.shape[:3]
    found = []
    for number in (1.0, torch.nan):
        case.keys[0][0, :, place] = number
        pools = (torch.zeros((*rows, 24), dtype=torch.int8) for _ in range(2))
        kv = LayerKV(*pools, 0, torch.zeros(rows), torch.zeros(rows))
        found.append(attend(kernels, replace(case, kv=kv), AttentionSpec(0.2), kv=kv))
    assert found[1][:9].isnan().all()
    assert torch.equal(found[0][9:], found[1][9:])


@with_types
@pytest.mark.parametrize(("rotated", "first"), [(4, False), (8, False), (4, True)])
def test_heads_are_normalised_and_turned(
    kernels: Kernels, dtype: torch.dtype, rotated: int, first: bool
) -> None:
    """Queries grow; the sinks beyond the window meet one of another rotation.

    first: they are turned first.
    """
    case = make_case(dtype, sinks=3, window=6)
    generator = torch.Generator().manual_seed(1)
    near, far = torch.randn(2, len(case.query), rotated, generator=generator, dtype=torch.float64)
    weight = torch.rand(16, generator=generator, dtype=torch.float64).to(dtype)
    norms = Norm(16, weight, 1e-6), Norm(16, weight + 1, 1e-6)
    wide = torch.promote_types(dtype, torch.float32)
    scale = 1 + torch.rand(len(case.query), generator=generator)
    turns = (x.to(wide) for x in (near.cos(), near.sin(), far.cos(), far.sin()))
    rotation = Rotation(*turns, query_scale=scale)
    new_keys = case.new(case.keys)
    found = attend(
        kernels, case, AttentionSpec(0.25, 6, 3, None, *norms, norm_turned=first), rotation
    )

    def normalised(x: Tensor, norm: Norm) -> Tensor:
        x = x.double()
        return x * (x.square().mean(dim=-1, keepdim=True) + norm.eps).rsqrt() * norm.weight

    def both(x: Tensor, norm: Norm, angles: Tensor) -> Tensor:
        if first:
            return normalised(turned(x.double(), angles), norm)
        return turned(normalised(x, norm), angles)

    def queries(angles: Tensor) -> Tensor:
        return both(case.query, norms[0], angles) * scale[:, None, None]

    written = both(new_keys, norms[1], near)
    counts = case.batch.query_starts
    for i, keys in enumerate(case.keys):
        own = written[counts[i] : counts[i + 1]]
        case.keys[i] = torch.cat((keys[: len(keys) - len(own)].double(), own))
    exact = replace(case, query=queries(near))
    expected = plain(exact, AttentionSpec(0.25, 6, 3), queries(far))
    assert (found.double() - expected).abs().max() < TOLERANCE[dtype] * 10


@with_types
@pytest.mark.parametrize(("chunk", "block_size"), [(8, 4), (10, 4), (300, 16)])
def test_blocks_of_chunks_before_are_not_there(
    kernels: Kernels, dtype: torch.dtype, chunk: int, block_size: int
) -> None:
    """New tokens are in one chunk, or in several; the last is at the beginning of one."""
    ragged = ((5, 5), (9, 1), (21, 1), (21, 13), (301, 1), (301, 2), (700, 130))
    case = make_case(dtype, (6, 2), (24, 24), block_size, ragged, window=chunk, by_chunks=True)
    assert_equal_to_plain(kernels, case, AttentionSpec(0.2, chunk, by_chunks=True))


@with_types
def test_what_is_not_a_number_stays_in_its_row(kernels: Kernels, dtype: torch.dtype) -> None:
    case = make_case(dtype)
    expected = attend(kernels, case, AttentionSpec(0.25))
    for first, last in ((5, 6), (6, 13)):  # a decode and a prefill
        sick = replace(case, query=case.query.clone())
        sick.query[first:last] = torch.nan
        found = attend(kernels, sick, AttentionSpec(0.25))
        assert found[first:last].isnan().all()
        found[first:last] = expected[first:last]
        assert torch.equal(found, expected)


@with_types
def test_blocks_may_lie_between_those_of_another_form(kernels: Kernels, dtype: torch.dtype) -> None:
    """Two units of a memory are a block here, and every third one is a smaller layer's."""
    spec = AttentionSpec(0.125, window=40)
    case = make_case(dtype, (6, 2), (64, 32), 16)
    own, kv_group = case.kv, case.batch.kv_groups[0]
    count, size = len(own.keys), case.batch.block_size
    units = [torch.full((3 * count + 2, 2, size // 2, dim), 7.0).to(dtype) for dim in (64, 32)]

    def seen(unit: torch.Tensor) -> torch.Tensor:
        """From the third on, two at a time."""
        width = unit.shape[-1]
        form, steps = (3 * count - 1, 2, size, width), (size * width, size * width, width, 1)
        return unit.as_strided(form, steps, 2 * unit.stride(0))

    lane = LayerKV(*map(seen, units))
    assert lane.block_rows == size and lane.dims == own.dims
    tiles = to_tiles(kernels, own)
    for part, old in zip(lane.parts, tiles.parts, strict=True):
        part[::3].copy_(old)
    slots = kv_group.slots // size * 3 * size + kv_group.slots % size
    kv_group = kv_group._replace(slots=slots, block_tables=kv_group.block_tables * 3)
    batch = replace(case.batch, kv_groups=(kv_group,))
    new = case.query, case.new(case.keys), case.new(case.values)
    found = kernels.attend(*new, lane, spec, kernels.plan(batch))
    assert torch.equal(found, attend(kernels, case, spec))
    assert all((one[4::3] == 7).all() and (one[:2] == 7).all() for one in units)
    kernels.copy_blocks([lane], [lane], [(0, 3), (3, 9)])
    assert all(torch.equal(part[0].nan_to_num(), part[9].nan_to_num()) for part in lane.parts)
    assert all((one[4::3] == 7).all() for one in units)
