"""What planner and simulator read of a model's config is what the loaded model is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quire.core.errors import ConfigError
from quire.execution.kv.layers import bytes_per_token
from quire.models.loader import load_model
from quire.models.shape import read_shape
from support.small_models import FAMILIES, GEMMAS, HYBRIDS, RECORDS

NOT_SIMULATED = {"opt-350m"}  # its embeddings are narrower than its layers


@pytest.mark.parametrize("family", sorted({*FAMILIES, *HYBRIDS, *RECORDS, *GEMMAS} - NOT_SIMULATED))
def test_the_shape_of_a_config_is_that_of_the_model(
    family: str, model_dir: Callable[[str], Path]
) -> None:
    directory = model_dir(family)
    shape, model = read_shape(directory / "config.json"), load_model(directory, "float32")
    cache = replace(shape, kv_dtype="float32").cache()
    assert cache.windows == model.windows
    assert cache.max_positions == model.max_positions
    assert cache.depends_on_prompt_length == model.kv_depends_on_prompt_length
    assert list(cache.token_bytes) == [
        bytes_per_token([kv_shape], model.dtype) for kv_shape in model.kv_shapes
    ]
    assert shape.vocab_size == model.vocab_size
    # Norms and biases count for much in models as small as these, and what fills up panels of an
    # index, which has few outputs.
    assert replace(shape, dtype="float32").weight_bytes == pytest.approx(
        model.weight_bytes, rel=0.03 if shape.index is None else 0.05
    )


@pytest.mark.parametrize("family", ["llama", "linear", "dynamic", "yarn", "longrope"])
def test_the_longest_text_is_that_of_the_model(
    family: str, model_dir: Callable[[str], Path]
) -> None:
    shape = read_shape(model_dir(family) / "config.json")
    limit = shape.position_limit
    assert limit is not None
    model = load_model(model_dir(family), "float32", max_model_len=limit)
    cache = shape.cache(limit)
    assert cache.depends_on_prompt_length == model.kv_depends_on_prompt_length
    for refuse in (
        lambda: load_model(model_dir(family), max_model_len=limit + 1),
        lambda: shape.cache(limit + 1),
    ):
        with pytest.raises(ConfigError, match=f"this model allows 1 to {limit}$"):
            refuse()
