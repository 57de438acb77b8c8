"""Attention over latents: what is kept of a token is one key, whose last numbers are its value."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quire.kernels.cpu import CPUKernels
from quire.kernels.layer_memory import LayerKV
from quire.kernels.ops import AttentionSpec, Kernels
from quire.kernels.reference import ReferenceKernels
from support.attention_cases import Case, attend, plain
from support.every_kernel import TRITON, TYPED
from support.instruction_sets import TESTED
from support.kv_tiles import to_tiles
from support.latents import latent_case

pytestmark = pytest.mark.usefixtures("poisoned_memory")

ON_CPUS = [one for one in TYPED if one[0] not in TRITON]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
FORMS = {None: 1e-5, torch.int8: 3e-2, torch.int4: 0.3}


def rounded(case: Case, form: torch.dtype | None) -> LayerKV:
    """An empty pool, in that form."""
    keys = case.kv.keys
    if form is None:
        return case.kv
    pool = torch.zeros(
        (*keys.shape[:3], keys.shape[3] // (2 if form == torch.int4 else 1)),
        dtype=torch.uint8 if form == torch.int4 else form,
    )
    return case.kv._replace(
        keys=pool,
        values=pool.new_empty((*keys.shape[:3], 0)),
        key_scales=torch.zeros(keys.shape[:3]),
    )


@pytest.mark.parametrize(("kernels", "dtype"), ON_CPUS, indirect=["kernels"], ids=str)
@pytest.mark.parametrize(
    ("heads", "dims", "block_size"),
    [(3, (24, 16), 4), (16, (40, 24), 16), (5, (72, 66), 16), (20, (576, 512), 16)],
    ids=str,
)
def test_values_are_read_from_keys(
    kernels: Kernels, dtype: torch.dtype, heads: int, dims: tuple[int, int], block_size: int
) -> None:
    case = latent_case(dtype, heads, dims, block_size, ((1, 1), (40, 1), (33, 7), (90, 2)))
    for spec in (AttentionSpec(dims[0] ** -0.5), AttentionSpec(dims[0] ** -0.5, window=7)):
        found = attend(kernels, case, spec)
        assert (found.double() - plain(case, spec)).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("form", [torch.int8, torch.int4], ids=str)
@pytest.mark.parametrize("dims", [(576, 512), (48, 32)], ids=str)
@pytest.mark.parametrize("name", ["reference", *TESTED])
def test_latents_of_fewer_bits(name: str, dims: tuple[int, int], form: torch.dtype) -> None:
    """The whole text is new, and so rounded by the kernels; all round alike."""
    case = latent_case(torch.bfloat16, 20, dims, 16, ((70, 70), (20, 20)))
    spec = AttentionSpec(dims[0] ** -0.5)
    kernels = ReferenceKernels() if name == "reference" else CPUKernels(name)
    kv = rounded(case, form)
    found, expected = attend(kernels, case, spec, kv=kv), plain(case, spec)
    assert (found.double() - expected).square().mean().sqrt() < FORMS[form] * expected.std()
    theirs = rounded(case, form)
    attend(ReferenceKernels(), case, spec, kv=theirs)
    assert torch.allclose(kv.key_scales, theirs.key_scales, rtol=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(
    ("heads", "dims", "context"), [(8, (96, 64), 300), (16, (576, 512), 90)], ids=str
)
@pytest.mark.parametrize("name", TESTED)
def test_a_row_has_the_bits_that_it_has_alone(
    name: str, heads: int, dims: tuple[int, int], context: int, form: torch.dtype | None
) -> None:
    """In prompts many rows are in lanes; in decoding few are, or those that share blocks."""
    spec, kernels = AttentionSpec(0.2), CPUKernels(name)
    whole = latent_case(torch.bfloat16, heads, dims, 16, ((context, context),))
    kv = to_tiles(kernels, rounded(whole, form))
    plan, keys = kernels.plan(whole.batch), whole.new(whole.keys)
    expected = kernels.attend(whole.query, keys, whole.new(whole.values), kv, spec, plan)
    kv_group = whole.batch.kv_groups[0]

    def again(ends: tuple[int, ...], new: int) -> None:
        """New tokens of sequences with one table, which end there."""
        here = torch.cat([torch.arange(end - new, end) for end in ends])
        batch = replace(
            whole.batch,
            positions=whole.batch.positions[here],
            query_starts=tuple(range(0, len(here) + 1, new)),
            context_lens=torch.tensor(ends),
            output_starts=torch.tensor(ends),
            kv_groups=(
                kv_group._replace(
                    slots=kv_group.slots[here],
                    block_tables=kv_group.block_tables.repeat(len(ends), 1),
                    num_dropped=kv_group.num_dropped.repeat(len(ends)),
                ),
            ),
        )
        key = keys[here]
        found = kernels.attend(
            whole.query[here], key, key[..., -dims[1] :], kv, spec, kernels.plan(batch)
        )
        assert torch.equal(found, expected[here]), (ends, new)

    before = torch.get_num_threads()
    try:
        for new, threads in ((1, 1), (1, 3), (2, 1), (37, 2)):
            torch.set_num_threads(threads)
            for ends in ((context,), (context - 43,), (context, context - 1, context - 2)):
                again(ends, new)
    finally:
        torch.set_num_threads(before)
