"""All kernels equal softmax attention in float64 over contiguous keys and values.

Once for each instruction set that this machine has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch
from torch import Tensor

from quire.kernels import reference
from quire.kernels.cpu import DTYPES, CPUKernels, instruction_sets
from quire.kernels.ops import (
    ACTIVATIONS,
    AttentionBatch,
    AttentionSpec,
    Kernels,
    LaneTables,
    LayerKV,
    Norm,
    Rotation,
)
from quire.kernels.reference import ReferenceKernels
from support.gpu_kernels import TRITON, triton_kernels

# (context, new tokens): decodes and prefills mixed, whole prompts and later chunks, long and short.
RAGGED = ((1, 1), (5, 5), (9, 1), (33, 7), (40, 1), (17, 17), (3, 2), (16, 1), (2, 1))

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


KERNELS = ("reference", *instruction_sets(), *TRITON)  # every implementation that can run here
# And the types of each. The faster ones have no float64, in which the reference shows its formulas.
TYPED = [("reference", torch.float64), *product(KERNELS, DTYPES)]

with_types = pytest.mark.parametrize(("kernels", "dtype"), TYPED, indirect=["kernels"], ids=str)


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param in TRITON:
        return triton_kernels()
    return ReferenceKernels() if request.param == "reference" else CPUKernels(request.param)


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """New tensors hold NaN until they are written."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan()
    yield
    torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class Case:
    """A batch, its pool as earlier steps left it, and the whole sequences as plain tensors."""

    batch: AttentionBatch
    kv: LayerKV
    query: Tensor  # [T, H, D] of the new tokens
    keys: list[Tensor]  # of each sequence, [context, Hkv, D]
    values: list[Tensor]

    def new(self, of: list[Tensor]) -> Tensor:
        counts = [
            b - a
            for a, b in zip(self.batch.query_starts, self.batch.query_starts[1:], strict=False)
        ]
        return torch.cat([tensor[-count:] for tensor, count in zip(of, counts, strict=True)])


def make_case(
    dtype: torch.dtype = torch.float32,
    heads: tuple[int, int] = (4, 2),
    dims: tuple[int, int] = (16, 16),
    block_size: int = 4,
    ragged: tuple[tuple[int, int], ...] = RAGGED,
    sinks: int = 0,
    window: int | None = None,
) -> Case:
    """Random tensors; block ids in random order; every slot not yet written holds NaN.

    Blocks between the sinks and the ``window`` of the first new token are not in the tables.
    """
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    num_heads, kv_heads = heads
    counts = [-(-context // block_size) for context, _ in ragged]
    ids = list(range(sum(counts) + 3))
    random.Random(0).shuffle(ids)
    pools = [
        torch.full((len(ids), kv_heads, block_size, dim), torch.nan, dtype=dtype) for dim in dims
    ]
    starts, positions, slots, tables = [0], [], [], []
    keys, values, dropped = [], [], []
    sink_blocks = -(-sinks // block_size)
    for (context, new), count in zip(ragged, counts, strict=True):
        table = [ids.pop() for _ in range(count)]
        keys.append(normal(context, kv_heads, dims[0]))
        values.append(normal(context, kv_heads, dims[1]))
        where = torch.arange(context)
        blocks, offsets = torch.tensor(table)[where // block_size], where % block_size
        old = slice(context - new)
        pools[0][blocks[old], :, offsets[old]] = keys[-1][old]
        pools[1][blocks[old], :, offsets[old]] = values[-1][old]
        positions.append(where[context - new :])
        slots.append((blocks * block_size + offsets)[context - new :])
        starts.append(starts[-1] + new)
        behind = 0 if window is None else max(0, context - new - window + 1) // block_size
        dropped.append(max(0, behind - sink_blocks))
        gone = blocks.unique_consecutive()[sink_blocks : sink_blocks + dropped[-1]]
        for pool in pools:
            pool[gone] = torch.nan
        del table[sink_blocks : sink_blocks + dropped[-1]]
        tables.append(table + [0] * (max(counts) - len(table)))
    contexts = torch.tensor([context for context, _ in ragged])
    batch = AttentionBatch(
        positions=torch.cat(positions),
        query_starts=tuple(starts),
        context_lens=contexts,
        prompt_lens=contexts,
        lanes=(
            LaneTables(torch.cat(slots), torch.tensor(tables), torch.tensor(dropped), sink_blocks),
        ),
        block_size=block_size,
    )
    return Case(batch, LayerKV(*pools), normal(starts[-1], num_heads, dims[0]), keys, values)


def attend(
    kernels: Kernels,
    case: Case,
    spec: AttentionSpec,
    rotation: Rotation | None = None,
    kv: LayerKV | None = None,
) -> Tensor:
    """On a copy of the pool, or on ``kv``."""
    kv = LayerKV(case.kv.keys.clone(), case.kv.values.clone()) if kv is None else kv
    plan = kernels.plan(case.batch)
    return kernels.attend(
        case.query, case.new(case.keys), case.new(case.values), kv, spec, plan, rotation
    )


def plain(case: Case, spec: AttentionSpec, sink_query: Tensor | None = None) -> Tensor:
    """The definition, one sequence at a time, in float64."""
    outputs = []
    heads = case.query.shape[1]
    sink_query = case.query if sink_query is None else sink_query
    bounds = zip(case.batch.query_starts, case.batch.query_starts[1:], strict=False)
    for (first, last), keys, values in zip(bounds, case.keys, case.values, strict=True):
        k = torch.arange(len(keys))
        q = k[len(keys) - (last - first) :, None]
        hidden = k > q
        beyond = torch.zeros_like(hidden) if spec.window is None else k <= q - spec.window
        hidden |= beyond & (k >= spec.sinks)
        group = heads // keys.shape[1]
        keys, values = (x.double().repeat_interleave(group, dim=1) for x in (keys, values))
        near, far = (
            torch.einsum("qhd,khd->hqk", query[first:last].double(), keys) * spec.scale
            for query in (case.query, sink_query)
        )
        scores = torch.where(beyond, far, near)
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outputs)


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
    for window, softcap in product((None, 1, 7, 64), (None, 3.0)):
        assert_equal_to_plain(
            kernels, case, AttentionSpec(dims[0] ** -0.5, window, softcap=softcap)
        )


@with_types
@pytest.mark.parametrize("dim", [32, 96, 128, 256])
def test_head_sizes(kernels: Kernels, dtype: torch.dtype, dim: int) -> None:
    case = make_case(dtype, (7, 1), (dim, dim), 16, ((20, 1), (70, 33)))
    assert_equal_to_plain(kernels, case, AttentionSpec(dim**-0.5))


@with_types
@pytest.mark.parametrize("kv_dtype", [*DTYPES, torch.int8], ids=str)
@pytest.mark.parametrize("block_size", [1, 16])
def test_the_cache_may_have_another_type(
    kernels: Kernels, dtype: torch.dtype, kv_dtype: torch.dtype, block_size: int
) -> None:
    """What was stored is near the new keys and values; attention is that over what was stored."""
    ragged = tuple((context, context) for context, _ in RAGGED)
    case = make_case(dtype, (6, 2), (40, 24), block_size, ragged)
    rows = case.kv.keys.shape[:3]
    scales = [torch.full(rows, torch.nan) for _ in range(2 if kv_dtype == torch.int8 else 0)]
    kv = LayerKV(case.kv.keys.to(kv_dtype), case.kv.values.to(kv_dtype), 0, *scales)
    found = attend(kernels, replace(case, kv=kv), AttentionSpec(0.15), kv=kv)
    slots = case.batch.lanes[0].slots
    stored = []
    for i, (pool, of) in enumerate(((kv.keys, case.keys), (kv.values, case.values))):
        kept = pool[slots // block_size, :, slots % block_size].double()
        new = case.new(of).double()
        if scales:
            scale = scales[i][slots // block_size, :, slots % block_size].double()[..., None]
            kept *= scale
            assert ((kept - new).abs() <= scale * 0.501).all()
            assert torch.allclose(scale * 127, new.abs().amax(dim=2, keepdim=True))
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
    tables = case.batch.lanes[0].block_tables
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


def test_new_keys_and_values_are_written_and_nothing_else(kernels: Kernels) -> None:
    case = make_case()
    before = case.kv.keys.clone()
    keys, values = case.new(case.keys), case.new(case.values)
    plan = kernels.plan(case.batch)
    kernels.attend(case.query, keys, values, case.kv, AttentionSpec(0.25), plan)
    size = case.batch.block_size
    blocks, offsets = case.batch.lanes[0].slots // size, case.batch.lanes[0].slots % size
    assert torch.equal(case.kv.keys[blocks, :, offsets], keys)
    assert torch.equal(case.kv.values[blocks, :, offsets], values)
    case.kv.keys[blocks, :, offsets] = before[blocks, :, offsets]
    assert torch.equal(case.kv.keys.nan_to_num(), before.nan_to_num())


def test_a_plan_serves_layers_with_different_windows(kernels: Kernels) -> None:
    case = make_case()
    plan = kernels.plan(case.batch)
    for window in (None, 5):
        spec = AttentionSpec(0.25, window)
        found = kernels.attend(
            case.query, case.new(case.keys), case.new(case.values), case.kv, spec, plan
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


@with_types
@pytest.mark.parametrize("rotated", [4, 8])
def test_heads_are_normalised_and_turned(
    kernels: Kernels, dtype: torch.dtype, rotated: int
) -> None:
    """The sinks beyond the window meet a query of another rotation."""
    case = make_case(dtype, sinks=3, window=6)
    generator = torch.Generator().manual_seed(1)
    near, far = torch.randn(2, len(case.query), rotated, generator=generator, dtype=torch.float64)
    weight = torch.rand(16, generator=generator, dtype=torch.float64).to(dtype)
    norms = Norm(16, weight, 1e-6), Norm(16, weight + 1, 1e-6)
    wide = torch.promote_types(dtype, torch.float32)
    rotation = Rotation(*(x.to(wide) for x in (near.cos(), near.sin(), far.cos(), far.sin())))
    new_keys = case.new(case.keys)
    found = attend(kernels, case, AttentionSpec(0.25, 6, 3, None, *norms), rotation)

    def normalised(x: Tensor, norm: Norm) -> Tensor:
        x = x.double()
        return x * (x.square().mean(dim=-1, keepdim=True) + norm.eps).rsqrt() * norm.weight

    query = normalised(case.query, norms[0])
    written = turned(normalised(new_keys, norms[1]), near)
    counts = case.batch.query_starts
    for i, keys in enumerate(case.keys):
        own = written[counts[i] : counts[i + 1]]
        case.keys[i] = torch.cat((keys[: len(keys) - len(own)].double(), own))
    exact = replace(case, query=turned(query, near))
    expected = plain(exact, AttentionSpec(0.25, 6, 3), turned(query, far))
    assert (found.double() - expected).abs().max() < TOLERANCE[dtype] * 10


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Equal but for one rounding to ``dtype``, and for float32 within."""
    assert found.dtype == dtype
    error = max(torch.finfo(dtype).eps, 1e-12 if dtype == torch.float64 else 1e-5)
    return torch.allclose(found.double(), expected, rtol=error, atol=error)


@with_types
@pytest.mark.parametrize("width", [7, 24, 64, 576])
@pytest.mark.parametrize("rows", [1, 5, 300])
def test_norms(kernels: Kernels, dtype: torch.dtype, width: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, delta = (torch.randn(2, rows, 2 * width, generator=generator) + 3).to(dtype)[..., :width]
    weight, bias = torch.randn(2, width, generator=generator).to(dtype)
    total = (x + delta).double()
    centred = total - total.mean(dim=1, keepdim=True)
    scale = (centred.square().mean(dim=1, keepdim=True) + 1e-3).rsqrt()
    for w, b in product((None, weight), (None, bias)):
        expected = centred * scale * (1 if w is None else w.double())
        expected += 0 if b is None else b.double()
        norm = Norm(width, w, 1e-3, b, centred=True)
        assert close(kernels.norm(total.to(dtype), norm), expected, dtype)
    scale = (total.square().mean(dim=1, keepdim=True) + 1e-3).rsqrt()
    expected = total * scale * weight.double()
    assert close(kernels.add_norm(x, delta, Norm(width, weight, 1e-3)), expected, dtype)
    assert torch.equal(x, total.to(dtype))


EXACT_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x * (1 + (x / 2**0.5).erf()) / 2,
    "gelu_new": lambda x: x * (1 + (0.7978845608028654 * (x + 0.044715 * x**3)).tanh()) / 2,
    "gelu_pytorch_tanh": lambda x: EXACT_ACTIVATIONS["gelu_new"](x),
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x / (1 + (-x).exp()),
}


@with_types
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(kernels: Kernels, dtype: torch.dtype, name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (4 * torch.randn(3, 600, generator=generator)).to(dtype)
    x[0, :4] = torch.tensor([0.0, -50.0, 50.0, -1e-3])
    for width in (2, 14, 64, 600):
        part = x[:, :width]
        gate, up = (half.double() for half in part.chunk(2, dim=1))
        exact = EXACT_ACTIVATIONS[name]
        plain_found = kernels.activate(part.clone(), name, gated=False)
        assert close(plain_found, exact(part.double()), dtype)
        found = kernels.activate(part.clone(), name, gated=True)
        # The reference rounds the activation before it multiplies.
        assert torch.allclose(
            found.double(), exact(gate) * up, rtol=2 * torch.finfo(dtype).eps, atol=1e-5
        )


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
def test_argmax_takes_the_first_of_the_largest(kernels: Kernels, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for width in (1, 7, 64, 3000):
        x = torch.randint(-9, 9, (40, 2 * width), generator=generator).to(dtype)[:, :width]
        x[0] = -torch.inf
        x[1, width // 2 :] = torch.inf
        x[2, width // 2] = torch.nan
        rows = [[float(v) if v == v else float("inf") for v in row] for row in x.tolist()]
        rows[2] = [float(place == width // 2) for place in range(width)]  # NaN is the largest
        assert kernels.argmax(x).tolist() == [row.index(max(row)) for row in rows]


def test_copies_follow_their_order(kernels: Kernels) -> None:
    pool = LayerKV(torch.arange(4.0).view(4, 1, 1, 1), torch.arange(4.0).view(4, 1, 1, 1) + 10)
    kernels.copy_blocks(pool, pool, [(0, 1), (1, 2), (3, 0)])
    assert pool.keys.flatten().tolist() == [3, 0, 0, 3]
    assert pool.values.flatten().tolist() == [13, 10, 10, 13]


def test_copies_between_pools(kernels: Kernels) -> None:
    source = LayerKV(torch.ones(2, 1, 1, 1), torch.full((2, 1, 1, 1), 2.0))
    target = LayerKV(torch.zeros(3, 1, 1, 1), torch.zeros(3, 1, 1, 1))
    kernels.copy_blocks(source, target, [(1, 2)])
    assert target.keys.flatten().tolist() == [0, 0, 1]
    assert target.values.flatten().tolist() == [0, 0, 2]
