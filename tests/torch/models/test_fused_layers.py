"""Layers whose own operations become one call give what the operations give, whatever they keep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quire.kernels.cpu import CPUKernels
from quire.models.loader import load_model
from support.hf_reference import random_prompts
from support.paged_harness import PagedHarness
from support.small_models import GEMMAS, HYBRIDS, LATENTS

ModelDir = Callable[[str], Path]


APART = ("gemma4-experts",)  # goes operation by operation


@pytest.mark.parametrize("family", [*HYBRIDS, *LATENTS, *GEMMAS])
def test_layers_in_one_call_give_what_single_operations_give(
    family: str, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, model = random_prompts(3, 30), load_model(model_dir(family))
    asked: list[object] = []
    fuse = CPUKernels.fuse
    monkeypatch.setattr(CPUKernels, "fuse", lambda *given: asked.append(fuse(*given)) or asked[-1])
    fused = PagedHarness(model).prefill(texts, 7)
    assert (None in asked) == (family in APART)
    asked.clear()
    monkeypatch.setattr(CPUKernels, "fuse", lambda *_: asked.append(None))
    single = PagedHarness(model).prefill(texts, 7)
    assert asked
    for found, expected in zip(fused, single, strict=True):
        assert (found - expected).abs().max() < 1e-4
