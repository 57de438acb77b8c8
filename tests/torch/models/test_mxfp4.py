"""gpt-oss as it is published: experts of four-bit floats, the numbers that transformers reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from quire.core.errors import ModelError
from quire.kernels.ranks import Ranks
from quire.models.loader import load_model
from support.hf_reference import hf_logits, random_prompts
from support.paged_harness import PagedHarness
from support.thread_ranks import on_ranks

ModelDir = Callable[[str], Path]
Tensors = dict[str, Tensor]


def save(directory: Path, config: dict[str, object], tensors: Tensors) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    save_file(
        {name: t.contiguous() for name, t in tensors.items()}, directory / "model.safetensors"
    )
    return directory


class Pair(NamedTuple):
    """The same model twice: rounded, and the floats that transformers makes of it."""

    rounded: Path
    floats: Path
    in_float16: bool  # whether scales are


@pytest.fixture(params=[(118, 126), (90, 126)], ids=["usual", "beyond float16"])
def pair(request: pytest.FixtureRequest, model_dir: ModelDir, tmp_path: Path) -> Pair:
    torch.manual_seed(0)
    config = json.loads((model_dir("gpt_oss") / "config.json").read_text())
    rounded: Tensors = {}
    floats: Tensors = {}
    for name, tensor in load_file(model_dir("gpt_oss") / "model.safetensors").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            rounded[name] = floats[name] = tensor
            continue
        many, inputs, outputs = tensor.shape
        shape = (many, outputs, inputs // 32)
        blocks = torch.randint(256, (*shape, 16), dtype=torch.uint8)
        scales = torch.randint(*request.param, shape, dtype=torch.uint8)
        rounded |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        floats[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    stored = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    return Pair(
        save(tmp_path / "rounded", {**config, "quantization_config": stored}, rounded),
        save(tmp_path / "floats", config, floats),
        request.param[0] > 104,
    )


def prefill(directory: Path, ranks: Ranks | None = None) -> list[Tensor]:
    model = load_model(directory, "float32", ranks=ranks)
    return PagedHarness(model).prefill(random_prompts(5, 30), 7)


def test_the_numbers_are_those_of_transformers(pair: Pair) -> None:
    expected = [hf_logits(pair.floats, text) for text in random_prompts(5, 30)]
    for found in (prefill(pair.rounded), on_ranks(2, partial(prefill, pair.rounded))[0]):
        for logits, exact in zip(found, expected, strict=True):
            assert (logits - exact).abs().max() < 1e-4


def test_codes_stay_codes_where_float16_has_their_scales(pair: Pair) -> None:
    rounded, floats = (load_model(d, "bfloat16").experts for d in (pair.rounded, pair.floats))
    assert rounded is not None and floats is not None
    share = rounded.weight_bytes / floats.weight_bytes
    assert share == pytest.approx(4.5 / 16 if pair.in_float16 else 1, rel=0.1)


def test_another_size_is_refused(pair: Pair) -> None:
    config = json.loads((pair.rounded / "config.json").read_text())
    (pair.rounded / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    with pytest.raises(ModelError, match=r"gate_up_proj.* has shape .*, but the config asks for"):
        load_model(pair.rounded)
