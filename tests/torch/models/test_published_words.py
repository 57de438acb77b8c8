"""Families that are others under names of their own, as their makers published them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import transformers
from safetensors import safe_open

from quire.models.decoder import DecoderModel
from quire.models.loader import check_servable, load_model
from quire.models.shape import read_shape
from support.hf_reference import hf_logits, random_prompts
from support.paged_harness import PagedHarness
from support.published import PUBLISHED, published
from support.small_models import CONFIGS, make_model

TEXT = random_prompts(30)[0]
CHUNK = 7


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_family_as_it_is_published(name: str, tmp_path: Path) -> None:
    case = PUBLISHED[name]
    if not hasattr(transformers, CONFIGS[case.family][0]):
        pytest.skip(f"this release of transformers has no {CONFIGS[case.family][0]}")
    source = make_model(case.family, tmp_path / "source", **case.made_with)
    directory = published(case, source, tmp_path / "theirs")
    assert check_servable(directory) == "Quire"
    model = load_model(directory)
    assert isinstance(model, DecoderModel)
    found = PagedHarness(model).prefill([TEXT], CHUNK)[0]
    assert (found - hf_logits(source, TEXT)).abs().max() < 1e-4
    shape = read_shape(directory)
    with safe_open(directory / "model.safetensors", "pt") as file:
        stored = sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    assert shape.num_params == pytest.approx(stored, rel=0.01)  # but for norms and biases
    assert not shape.planned_only
