"""What is particular to the GPU kernels: work lists, padded batches, quantised caches, waves."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.core.errors import ConfigError, ModelError
from quire.kernels.gpu.support import check_cache_dtype, check_device, check_model
from quire.kernels.gpu.tiles import Tile, Tiles, choose_tiles
from quire.kernels.layer_memory import KVShape, LayerKV
from quire.kernels.ops import AttentionSpec, KVGroupTables
from quire.kernels.reference import ReferenceKernels
from support.attention_cases import oldest_seen
from support.gpu_kernels import DTYPES, INTERPRETED, TRITON, triton_kernels
from support.paged_batches import BLOCK_SIZE, make_batch, make_kv, make_new

needs_triton = pytest.mark.skipif(not TRITON, reason="Triton is not installed")
needs_interpreter = pytest.mark.skipif(
    not (TRITON and INTERPRETED), reason="for Triton's interpreter"
)

# -- work lists --------------------------------------------------------------------------------

sequences = st.lists(
    st.tuples(st.integers(0, 90), st.sampled_from([1, 1, 2, 9, 40])), min_size=1, max_size=5
)


@needs_interpreter
@pytest.mark.parametrize(("window", "by_chunks"), [(None, False), (20, False), (20, True)])
@pytest.mark.parametrize("single", [True, False])
@settings(deadline=None, max_examples=12)
@given(before_and_new=sequences, programs=st.integers(1, 40))
def test_every_query_meets_every_key_it_sees_once(
    window: int | None,
    by_chunks: bool,
    single: bool,
    before_and_new: list[tuple[int, int]],
    programs: int,
) -> None:
    from quire.kernels.gpu.work import GPUPlan

    window = 2**30 if window is None else window
    batch, _ = make_batch([(before + new, new) for before, new in before_and_new])
    tiles = Tiles(Tile(16, 16, 4, 2, 1), Tile(16, 16, 4, 2, 1), 16)
    group = 2
    met: dict[tuple[int, int], list[int]] = {}
    for work in GPUPlan(batch, programs).work(4 * group, 4, window, by_chunks, tiles):
        if (work.tokens == 1) != single:
            continue
        items = [item for item in work.items.tolist() if item[0] >= 0]
        assert len(work.items) - len(items) <= -(-programs // 4)
        for place, (seq, tile, first, last, index, count) in enumerate(items):
            assert count == 1 or work.split
            siblings = items[place - index : place - index + count]
            assert [(s[0], s[1], s[4]) for s in siblings] == [(seq, tile, i) for i in range(count)]
            before, new = before_and_new[seq]
            for token in range(tile * work.tokens, min((tile + 1) * work.tokens, new)):
                seen = met.setdefault((seq, token), [])
                position = before + token
                oldest = oldest_seen(torch.tensor(position), window, by_chunks).item()
                seen += [key for key in range(first, last) if oldest <= key <= position]
    for seq, (before, new) in enumerate(before_and_new):
        for token in range(new if (new == 1) == single else 0):
            position = before + token
            oldest = oldest_seen(torch.tensor(position), window, by_chunks).item()
            assert sorted(met[seq, token]) == list(range(oldest, position + 1))


# -- padding -----------------------------------------------------------------------------------


@needs_interpreter
def test_sequences_that_pad_a_batch_change_nothing() -> None:
    kernels, spec = triton_kernels(), AttentionSpec(0.25)
    batch, num_blocks = make_batch([(37, 1), (6, 1), (21, 1)])
    new = make_new(batch, 4, 2, 16)
    kv = make_kv(num_blocks, 2, 16)
    plain_kv = LayerKV(kv.keys.clone(), kv.values.clone())
    expected = kernels.attend(*new, plain_kv, spec, kernels.plan(batch))

    def pad(x: Tensor, value: int) -> Tensor:
        return torch.cat((x, x.new_full((2, *x.shape[1:]), value)))

    kv_group = batch.kv_groups[0]
    columns = pad(kv_group.block_tables, 0).t().contiguous().t()  # as they lie in a buffer
    padded = replace(
        batch,
        positions=pad(batch.positions, 0),
        query_starts=tuple(range(6)),
        context_lens=pad(batch.context_lens, 0),
        kv_groups=(KVGroupTables(pad(kv_group.slots, -1), columns, pad(kv_group.num_dropped, 0)),),
    )
    found = kernels.attend(*(pad(x, 1) for x in new), kv, spec, kernels.plan(padded))
    assert torch.equal(found[:3], expected)
    assert not found[3:].any()
    assert torch.equal(kv.keys, plain_kv.keys) and torch.equal(kv.values, plain_kv.values)


# -- tiles -------------------------------------------------------------------------------------


@needs_interpreter
@pytest.mark.parametrize("capability", [(9, 0), (8, 0), (8, 9)])
@pytest.mark.parametrize("dim", [64, 96, 256])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_the_sizes_of_each_device_give_the_same(
    capability: tuple[int, int], dim: int, dtype: torch.dtype, error: float
) -> None:
    from quire.kernels.gpu.kernels import GPUKernels

    triton_kernels()  # mends the interpreter
    batch, num_blocks = make_batch([(300, 1), (40, 33), (1, 1)])
    new = [x.to(dtype) for x in make_new(batch, 4, 1, dim)]
    kv = make_kv(num_blocks, 1, dim)
    kv = LayerKV(kv.keys.to(dtype), kv.values.to(dtype))
    spec = AttentionSpec(dim**-0.5)
    results = []
    for kernels in (GPUKernels(capability, 4), ReferenceKernels()):
        own = LayerKV(kv.keys.clone(), kv.values.clone())
        results.append(kernels.attend(*new, own, spec, kernels.plan(batch)))  # type: ignore[arg-type]
    assert (results[0] - results[1]).abs().max() < error


@needs_interpreter
def test_whole_rounds_inside_a_window_need_no_mask() -> None:
    """The window is wider than a round of keys and a tile of queries together."""
    kernels, judge = triton_kernels(), ReferenceKernels()
    batch, num_blocks = make_batch([(230, 90), (150, 1), (64, 64)])
    new, kv = make_new(batch, 4, 2, 16), make_kv(num_blocks, 2, 16)
    spec = AttentionSpec(0.25, window=100)
    own = LayerKV(kv.keys.clone(), kv.values.clone())
    found = kernels.attend(*new, own, spec, kernels.plan(batch))
    assert (found - judge.attend(*new, kv, spec, judge.plan(batch))).abs().max() < 1e-5


def test_every_key_that_is_allowed_has_its_tiles() -> None:
    for capability in ((8, 0), (8, 6), (8, 9), (9, 0), (12, 0)):
        for dtype, dim in product(DTYPES, (16, 64, 128, 256)):
            tiles = choose_tiles(capability, dtype, dim)
            for tile in tiles[:2]:
                assert tile.rows >= 16 and tile.columns >= 16
                assert tiles.least_segment % tile.columns == 0


# -- quantised caches --------------------------------------------------------------------------


@needs_interpreter
@pytest.mark.parametrize(("dtype", "error"), [(torch.int8, 0.02), (torch.float8_e4m3fn, 0.07)])
def test_a_quantised_cache_holds_each_head_of_each_token_at_its_own_scale(
    dtype: torch.dtype, error: float
) -> None:
    kernels, dim = triton_kernels(), 16
    batch, num_blocks = make_batch([(9, 9), (30, 30), (3, 3)])
    query, key, value = make_new(batch, 4, 2, dim)
    key, value = key * torch.logspace(-3, 3, len(key))[:, None, None], value * 100
    key[4], value[5] = 0, 0
    shape = (num_blocks, 2, BLOCK_SIZE, dim)
    kv = LayerKV(
        torch.zeros(shape, dtype=dtype),
        torch.zeros(shape, dtype=dtype),
        0,
        torch.full(shape[:3], torch.nan),
        torch.full(shape[:3], torch.nan),
    )
    spec = AttentionSpec(1e-3)
    found = kernels.attend(query, key, value, kv, spec, kernels.plan(batch))
    slots = batch.kv_groups[0].slots
    blocks, offsets = slots // BLOCK_SIZE, slots % BLOCK_SIZE
    stored = []
    for pool, scales, exact in (
        (kv.keys, kv.key_scales, key),
        (kv.values, kv.value_scales, value),
    ):
        assert scales is not None
        held = pool[blocks, :, offsets].float() * scales[blocks, :, offsets][..., None]
        largest = exact.abs().amax(dim=-1, keepdim=True)
        assert ((held - exact).abs() <= error * largest).all()
        stored.append(held)
    # Attention itself adds no error of its own.
    plain = LayerKV(torch.zeros(shape), torch.zeros(shape))
    judge = ReferenceKernels()
    expected = judge.attend(query, *stored, plain, spec, judge.plan(batch))
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


# -- waves of copies ---------------------------------------------------------------------------

copies = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20)


@needs_triton
@given(copies, st.booleans())
def test_waves_do_what_one_copy_after_another_does(
    pairs: list[tuple[int, int]], same_pool: bool
) -> None:
    from quire.kernels.gpu.moves import independent_waves

    source = list(range(7))
    target = source if same_pool else [-1] * 7
    waved_source = source.copy()
    waved_target = waved_source if same_pool else target.copy()
    for origin, destination in pairs:
        target[destination] = source[origin]
    waves = independent_waves(pairs, same_pool)
    for wave in waves:
        found = [waved_source[origin] for origin, _ in wave]  # all read before any is written
        for (_, destination), content in zip(wave, found, strict=True):
            waved_target[destination] = content
        # And none is written that another reads, for all of a wave happens in any order.
        targets = [destination for _, destination in wave]
        assert len(set(targets)) == len(targets)
        if same_pool:
            assert all(
                i == j or origin != destination
                for i, (origin, _) in enumerate(wave)
                for j, (_, destination) in enumerate(wave)
            )
    assert waved_target == target
    assert sum(map(len, waves)) == len(pairs)


@needs_triton
def test_copies_that_do_not_touch_are_one_wave() -> None:
    from quire.kernels.gpu.moves import independent_waves

    assert len(independent_waves([(0, 1), (0, 2), (3, 4)], same_pool=True)) == 1
    assert len(independent_waves([(0, 1), (1, 0)], same_pool=False)) == 1


# -- what is refused ---------------------------------------------------------------------------


def test_what_the_kernels_lack_is_refused_by_name() -> None:
    shapes = (KVShape(8, 128, 128), KVShape(8, 320, 128))
    with pytest.raises(ModelError, match=r"heads of up to 256 .* 320"):
        check_model(shapes, torch.bfloat16)
    with pytest.raises(ModelError, match="float64"):
        check_model(shapes[:1], torch.float64)
    check_model(shapes[:1], torch.float16)
    with pytest.raises(ConfigError, match=r"Tesla T4 has compute capability 7\.5.*8\.0"):
        check_device("Tesla T4", (7, 5))
    check_device("NVIDIA H200", (9, 0))
    with pytest.raises(ConfigError, match=r"fp8.*8\.9.*A100 has 8\.0"):
        check_cache_dtype(torch.float8_e4m3fn, "A100", (8, 0))
    check_cache_dtype(torch.float8_e4m3fn, "L4", (8, 9))
    check_cache_dtype(torch.int8, "A100", (8, 0))
