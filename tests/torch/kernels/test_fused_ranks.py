"""Ranks whose layers run as one call add up inside it what they add up between calls otherwise."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.core.errors import RankError
from quire.kernels.adapters import AdaptedRows, Site, Update
from quire.kernels.cpu import CPUKernels
from quire.kernels.layer_memory import LayerKV
from quire.kernels.ranks import Ranks
from quire.models.loader import load_model
from support.paged_batches import make_batch
from support.ranks import ranks_of, together
from support.thread_ranks import on_ranks

RAGGED = [(1, 1), (9, 9), (30, 30)]
MANY = [(1, 1)] * 4100  # whose states have no room in one piece
# Without a scale on what parts give, which is rounded between calls.
FAMILIES = ("llama", "mixtral", "qwen2_moe", "falcon", "opt")
ModelDir = Callable[[str], Path]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only on Linux")


def states(model: Any, contexts: Sequence[tuple[int, int]], adapting: bool) -> Tensor:
    """Of random texts, some of whose rows have an adapter."""
    generator = torch.Generator().manual_seed(0)  # the same for all ranks, who are threads
    kernels = CPUKernels()
    batch, num_blocks = make_batch(list(contexts))
    rows = batch.query_starts[-1]
    tokens = torch.randint(model.vocab_size, (rows,), generator=generator)
    if adapting:
        batch = replace(
            batch, adapted=(AdaptedRows(((2, 7),), adapter(model, kernels, generator)),)
        )
    kv = [
        LayerKV(
            torch.zeros(num_blocks, shape.num_kv_heads, 4, shape.key_dim, dtype=model.dtype),
            torch.zeros(num_blocks, shape.num_kv_heads, 4, shape.value_dim, dtype=model.dtype),
        )
        for shape in model.kv_shapes
    ]
    return model.forward(tokens, batch, kv, kernels)


def adapter(model: Any, kernels: CPUKernels, generator: torch.Generator) -> object:
    """Of the first layer's projections over whose inputs ranks share."""
    updates = {}
    layer = model.decoder.layers[0]
    for site, weight in ((Site.output, layer.mixer.output), (Site.down, layer.mlp.down)):
        down, up = (
            torch.randn(shape, generator=generator)
            for shape in ((5, weight.inputs), (weight.outputs, 5))
        )
        updates[0, site] = [Update(0, down / 5, up / 5, 0.5)]
    return kernels.keep_adapter(updates, len(model.kv_shapes), model.dtype)


def compare(
    directory: Path,
    dtype: str,
    size: int,
    contexts: Sequence[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    adapting: bool = False,
    threads: int = 1,
) -> None:
    """In one call, and call by call."""

    def compute(ranks: Ranks) -> Tensor:
        model = load_model(directory, dtype, ranks=ranks)
        torch.set_num_threads(threads)
        return states(model, contexts, adapting)

    one_by_one = on_ranks(size, compute)
    monkeypatch.setattr("quire.models.decoder.run_layers", None)
    before = torch.get_num_threads()
    fused = together(ranks_of(size), compute)
    torch.set_num_threads(before)
    assert one_by_one[0].std() > 0
    for found in (*one_by_one, *fused):
        assert torch.equal(found, one_by_one[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_families(
    family: str, dtype: str, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(model_dir(family), dtype, 2, RAGGED, monkeypatch)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_and_threads(
    dtype: str, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(model_dir("llama"), dtype, 4, RAGGED, monkeypatch, adapting=True, threads=2)


def test_more_rows_than_go_at_once(model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(model_dir("llama"), "float32", 2, MANY, monkeypatch, threads=2)


@pytest.mark.parametrize(("contexts", "aborted"), [(RAGGED, False), (RAGGED, True), (MANY, True)])
def test_one_that_stays_away_ends_the_call_for_all_its_threads(
    contexts: Sequence[tuple[int, int]], aborted: bool, model_dir: ModelDir, two_threads: None
) -> None:
    first, second = ranks_of(2, 30.0 if aborted else 1.0)
    directory = model_dir("llama")
    model: Any = load_model(directory, ranks=first)
    rows = sum(new for _, new in contexts)

    def stay_away() -> None:
        for _ in range(4):  # for the embedding, and a layer and a half
            second.add_up(torch.zeros(rows, model.decoder.final_norm.width))
        if aborted:
            second.abort("enough")

    other = threading.Thread(target=stay_away)
    other.start()
    reason = "enough" if aborted else "rank 1 did not answer within 1.0 seconds"
    with pytest.raises(RankError, match=reason):
        states(model, contexts, False)
    other.join()
    with pytest.raises(RankError, match=reason):
        states(model, contexts, False)
    assert states(load_model(directory), contexts, False).std() > 0
