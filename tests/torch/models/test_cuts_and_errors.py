"""Families whose layers differ from Llama's most: bits whatever the cuts, errors of 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from quire.models.loader import load_model
from support.hf_reference import hf_logits, hf_model, random_prompts
from support.paged_harness import PagedHarness
from support.small_models import GEMMAS, INDEXED, LATENTS

ModelDir = Callable[[str], Path]

with_families = pytest.mark.parametrize("family", [*LATENTS, *INDEXED, *GEMMAS])


@with_families
def test_bits_do_not_depend_on_how_texts_are_cut(family: str, model_dir: ModelDir) -> None:
    texts = random_prompts(1, 40, 21)
    model = load_model(model_dir(family), dtype="bfloat16")
    for block_size in (4, 16):
        expected = [PagedHarness(model, 64, block_size).prefill([text], 64)[0] for text in texts]
        for chunk in (1, 7):
            found = PagedHarness(model, 64, block_size).prefill(texts, chunk)
            assert all(map(torch.equal, found, expected))


@with_families
def test_bfloat16_errs_as_much_as_transformers(family: str, model_dir: ModelDir) -> None:
    """What is rounded at another place, as queries taken to latents are, costs no more.

    In most rows: in some of a mixture a router's near tie falls otherwise, there or here.
    """
    directory, texts = model_dir(family), random_prompts(40, 60, 80, 100)
    found = torch.cat(PagedHarness(load_model(directory, dtype="bfloat16")).prefill(texts, 7))
    expected = torch.cat([hf_logits(directory, text) for text in texts])
    with torch.inference_mode():
        other = hf_model(directory, torch.bfloat16)
        theirs = torch.cat([other(torch.tensor([text])).logits[0].float() for text in texts])
    error, their_error = ((x - expected).square().mean(1).sqrt() for x in (found, theirs))
    assert error.median() < 1.1 * their_error.median()
