"""Tokens attend to those that an index chooses: as the definition has it, and to the bit."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from quire.kernels.cpu import CPUKernels
from quire.kernels.layer_memory import KVShape, LayerKV
from quire.kernels.ops import (
    AttentionBatch,
    AttentionSpec,
    IndexSpec,
    Kernels,
    KVGroupTables,
    Norm,
    Rotation,
)
from support.every_kernel import KERNELS, make_kernels
from support.gpu_kernels import TRITON
from support.instruction_sets import TESTED

ON_CPUS = [name for name in KERNELS if name not in TRITON]
HEADS, LATENT, TURNED, MOST = 3, 32, 8, 6
INDEX_HEADS, BLOCK = 11, 4
LENGTHS = (41, 300, 6, 1, 9)


class Texts(NamedTuple):
    """What a layer is given of whole texts, one after the other."""

    query: Tensor  # [T, HEADS, TURNED + LATENT]
    key: Tensor  # [T, 1, TURNED + LATENT]
    index_query: Tensor  # [T, INDEX_HEADS, width]
    index_key: Tensor  # [T, width]
    weights: Tensor  # [T, INDEX_HEADS]
    rotation: Rotation
    spec: IndexSpec


def make_texts(dtype: torch.dtype, width: int, distinct: int = 0) -> Texts:
    """distinct: so many index keys there are, which are not turned: so there are equal scores."""
    generator, tokens = torch.Generator().manual_seed(3), sum(LENGTHS)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    keys = normal(tokens, width)
    if distinct:
        keys = keys[torch.randint(distinct, (tokens,), generator=generator)]
    angles = torch.randn(tokens, TURNED // 2, generator=generator) * (not distinct)
    norm = Norm(width, normal(width), 1e-6, normal(width), centred=True)
    return Texts(
        normal(tokens, HEADS, TURNED + LATENT),
        normal(tokens, 1, TURNED + LATENT),
        normal(tokens, INDEX_HEADS, width),
        keys,
        torch.randn(tokens, INDEX_HEADS, generator=generator),
        Rotation(angles.cos(), angles.sin()),
        IndexSpec(INDEX_HEADS, MOST, norm),
    )


def make_memory(width: int, dtype: torch.dtype, kept: torch.dtype, blocks: int) -> LayerKV:
    """Nobody may read of it what has not been written."""
    shape = KVShape(1, TURNED + LATENT, LATENT, True, True, width)
    value = torch.nan if kept.is_floating_point else 99
    scales = None if kept.is_floating_point else torch.full((blocks, 1, BLOCK), torch.nan)
    return LayerKV.of(
        shape,
        lambda numbers: torch.full((blocks, 1, BLOCK, numbers), value, dtype=kept),
        scales=lambda: None if scales is None else scales.clone(),
    )


def attended(kernels: Kernels, texts: Texts, chunk: int, kept: torch.dtype | None = None) -> Tensor:
    """What all tokens find, in steps of so many tokens of each text."""
    firsts = [0, *accumulate(LENGTHS)]
    widest = -(-max(LENGTHS) // BLOCK)
    ids = list(range(len(LENGTHS) * widest))
    random.Random(0).shuffle(ids)
    tables = torch.tensor(ids).view(len(LENGTHS), widest)
    dtype = texts.query.dtype
    kv = make_memory(texts.index_key.shape[1], dtype, kept or dtype, len(ids))
    spec, found = AttentionSpec(0.2), torch.empty(sum(LENGTHS), HEADS, LATENT, dtype=dtype)
    for start in range(0, max(LENGTHS), chunk):
        parts = [
            (text, torch.arange(start, min(start + chunk, length)))
            for text, length in enumerate(LENGTHS)
            if length > start
        ]
        rows = torch.cat([firsts[text] + where for text, where in parts])
        slots = [tables[text][where // BLOCK] * BLOCK + where % BLOCK for text, where in parts]
        group = KVGroupTables(
            torch.cat(slots),
            tables[[text for text, _ in parts]],
            torch.zeros(len(parts), dtype=torch.int64),
        )
        ends = torch.tensor([int(where[-1]) + 1 for _, where in parts])
        starts = (0, *accumulate(len(where) for _, where in parts))
        positions = torch.cat([where for _, where in parts])
        batch = AttentionBatch(positions, starts, ends, ends, (group,), BLOCK)
        of_rows = Texts(*(part[rows] for part in texts[:5]), *texts[5:])
        turns = Rotation(texts.rotation.cos[rows], texts.rotation.sin[rows])
        plan = kernels.choose(
            of_rows.index_query,
            of_rows.index_key,
            of_rows.weights,
            kv,
            texts.spec,
            kernels.plan(batch),
            turns,
        )
        key = of_rows.key
        found[rows] = kernels.attend(of_rows.query, key, key[..., TURNED:], kv, spec, plan, turns)
    return found


def by_definition(texts: Texts) -> Tensor:
    """In float64; of equal scores the first."""
    norm, found = texts.spec.key_norm, []
    keys = torch.nn.functional.layer_norm(
        texts.index_key.double(),
        (norm.width,),
        *(part.double() for part in (norm.weight, norm.bias) if part is not None),
        norm.eps,
    )

    def turned(x: Tensor) -> Tensor:
        cos, sin = (part.double()[:, None] for part in texts.rotation[:2] if part is not None)
        a, b, rest = x.double().split([TURNED // 2, TURNED // 2, x.shape[2] - TURNED], 2)
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), 2)

    keys, queries = turned(keys[:, None])[:, 0], turned(texts.index_query)
    own, wanted = turned(texts.key)[:, 0], turned(texts.query)
    for first, last in zip([0, *accumulate(LENGTHS)], accumulate(LENGTHS), strict=False):
        for token in range(first, last):
            products = (queries[token] @ keys[first : token + 1].T).relu()
            scores = (texts.weights[token].double() @ products).float()
            best = scores.argsort(descending=True, stable=True)[:MOST] + first
            shares = (wanted[token] @ own[best].T * 0.2).softmax(1)
            found.append(shares @ texts.key[best, 0, TURNED:].double())
    return torch.stack(found)


@pytest.mark.parametrize("name", ON_CPUS)
@pytest.mark.parametrize(("width", "distinct"), [(24, 0), (128, 0), (21, 0), (16, 4)], ids=str)
def test_what_is_chosen(name: str, width: int, distinct: int) -> None:
    texts = make_texts(torch.float32, width, distinct)
    expected = by_definition(texts)
    for chunk in (7, 300):
        found = attended(make_kernels(name), texts, chunk)
        assert (found.double() - expected).abs().max() < 1e-5


@pytest.mark.parametrize("name", TESTED)
@pytest.mark.parametrize("kept", [None, torch.int8], ids=str)
def test_bits_do_not_depend_on_steps_nor_on_threads(name: str, kept: torch.dtype | None) -> None:
    texts, kernels = make_texts(torch.bfloat16, 24), CPUKernels(name)
    expected = attended(kernels, texts, 300, kept)
    before = torch.get_num_threads()
    try:
        for threads, chunk in ((1, 300), (2, 7), (3, 64)):
            torch.set_num_threads(threads)
            assert torch.equal(attended(kernels, texts, chunk, kept), expected)
    finally:
        torch.set_num_threads(before)


def test_keys_of_eight_bits_choose_nearly_the_same() -> None:
    """Of the reference and of C++, which round alike."""
    texts = make_texts(torch.float32, 64)
    found, other = (
        attended(make_kernels(name), texts, 64, torch.int8) for name in ("reference", TESTED[0])
    )
    same = (found - other).abs().amax((1, 2)) < 0.05
    near = (found - by_definition(texts)).abs().amax((1, 2)) < 0.2
    assert same.double().mean() > 0.95 and near.double().mean() > 0.7


@pytest.mark.parametrize("name", ON_CPUS)
def test_a_text_that_is_no_number_leaves_others_as_they_are(name: str) -> None:
    texts, kernels = make_texts(torch.float32, 24), make_kernels(name)
    expected, ill = attended(kernels, texts, 16), slice(LENGTHS[0], sum(LENGTHS[:2]))
    texts.index_key[ill] = torch.nan
    texts.index_query[ill.start + 50] = -torch.inf
    found = attended(kernels, texts, 16)
    others = torch.ones(sum(LENGTHS), dtype=torch.bool)
    others[ill] = False
    assert torch.equal(found[others], expected[others])
    assert found.isfinite().all()  # whatever is chosen is there
