"""Ranks that hold a part of a model each compute together what one computes alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from quire.kernels.ranks import Ranks
from quire.model import load_model
from support.hf_reference import random_prompts
from support.paged_harness import PagedHarness
from support.small_models import FAMILIES, RECORDS
from support.thread_ranks import on_ranks

ModelDir = Callable[[str], Path]

FALLBACK = ("gpt2",)
NATIVE = [family for family in (*FAMILIES, *RECORDS) if family not in FALLBACK]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", NATIVE)
def test_logits_are_those_of_one_rank(family: str, size: int, model_dir: ModelDir) -> None:
    directory, texts = model_dir(family), random_prompts(5, 19)

    def compute(ranks: Ranks | None) -> torch.Tensor:
        return torch.cat(PagedHarness(load_model(directory, ranks=ranks)).prefill(texts, 7))

    alone, (first, *others) = compute(None), on_ranks(size, compute)
    assert (first - alone).abs().max() < 1e-4
    assert torch.equal(first.argmax(1), alone.argmax(1))
    assert all(other.shape == (len(alone), 0) for other in others)
