"""Models whose attention is over latents: their bits, forms, memory, and what they are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quire.core.errors import ModelError
from quire.execution.kv.layers import bytes_per_token
from quire.kernels.layer_memory import KVShape
from quire.models.loader import load_model
from quire.models.shape import read_shape
from support.hf_reference import hf_logits, random_prompts
from support.paged_harness import PagedHarness
from support.rounded_checkpoints import rewritten
from support.small_models import LATENTS

ModelDir = Callable[[str], Path]

with_families = pytest.mark.parametrize("family", LATENTS)


def test_deepseek_v3_keeps_70_kb_of_a_token() -> None:
    """61 layers of 512 + 64 numbers; in 8 and 4 bits a scale with them."""
    layers = [KVShape(1, 576, 512, latent=True)] * 61
    assert bytes_per_token(layers, torch.bfloat16) == 70_272
    assert bytes_per_token(layers, torch.int8) == 61 * 580
    assert bytes_per_token(layers, torch.int4) == 61 * 292


@with_families
@pytest.mark.parametrize(("form", "tolerance"), [("int8", 0.12), ("int4", 0.8)])
def test_rounded(family: str, form: str, tolerance: float, model_dir: ModelDir) -> None:
    directory, texts = model_dir(family), random_prompts(20)
    model = load_model(directory, quantization=form)
    assert all(isinstance(shape, KVShape) and shape.latent for shape in model.kv_shapes)
    found = PagedHarness(model).prefill(texts, 7)[0]
    expected = hf_logits(directory, texts[0])
    assert (found - expected).square().mean().sqrt() < tolerance * expected.std()


def test_blocks_of_fp8_as_deepseek_publishes_them(model_dir: ModelDir, tmp_path: Path) -> None:
    """The stored numbers times their scales: so is what keys and values are made by."""
    block = 16

    def stored(name: str, tensor: Tensor) -> dict[str, Tensor]:
        if tensor.ndim != 2 or "_proj" not in name:
            return {name: tensor}
        rows, columns = (-(-size // block) for size in tensor.shape)
        padded = torch.zeros(rows * block, columns * block)
        padded[: len(tensor), : tensor.shape[1]] = tensor
        tiles = padded.view(rows, block, columns, block)
        scales = tiles.abs().amax((1, 3)).clamp_min(1e-6) / 448
        codes = (tiles / scales[:, None, :, None]).view(rows * block, -1)
        codes = codes[: len(tensor), : tensor.shape[1]].to(torch.float8_e4m3fn)
        return {name: codes.contiguous(), f"{name}_scale_inv": scales}

    def back(name: str, tensor: Tensor) -> dict[str, Tensor]:
        found = stored(name, tensor)
        if len(found) == 1:
            return found
        scales = found[f"{name}_scale_inv"].repeat_interleave(block, 0)[: len(tensor)]
        scales = scales.repeat_interleave(block, 1)[:, : tensor.shape[1]]
        return {name: found[name].float() * scales}

    source = model_dir("deepseek_v3")
    config = {"quant_method": "fp8", "weight_block_size": [block, block]}
    rounded, plain = (
        load_model(rewritten(source, tmp_path / name, change, settings))
        for name, change, settings in (("fp8", stored, config), ("plain", back, None))
    )
    found, expected = (PagedHarness(m).prefill(random_prompts(20), 7)[0] for m in (rounded, plain))
    assert (found - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("family", "fields", "named"),
    [
        ("deepseek_v2", {"scoring_func": "sigmoid"}, "scoring_func must be softmax"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob must be False"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'"),
        ("deepseek_v2-lite", {"attention_bias": True}, "attention_bias must be false without"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func must be sigmoid"),
        ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank is missing"),
    ],
)
def test_what_is_not_computed(
    family: str, fields: dict[str, object], named: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    directory = rewritten(model_dir(family), tmp_path / "x", lambda name, tensor: {name: tensor})
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    with pytest.raises(ModelError, match=named):
        load_model(directory)


def test_the_first_layer_of_glm_has_no_experts(model_dir: ModelDir, tmp_path: Path) -> None:
    source = model_dir("glm4_moe_lite")
    directory = rewritten(source, tmp_path / "x", lambda name, tensor: {name: tensor})
    path = directory / "config.json"
    fields = json.loads(path.read_text())
    assert fields.pop("mlp_layer_types") == ["dense", "sparse"]
    path.write_text(json.dumps(fields))
    found, expected = (
        PagedHarness(load_model(one)).prefill(random_prompts(9), 7)[0]
        for one in (directory, source)
    )
    assert torch.equal(found, expected)
    shape = read_shape(directory)
    assert shape.experts is not None and shape.experts.layers == (False, True)


def test_a_plan_has_the_bytes_that_the_engine_takes(model_dir: ModelDir) -> None:
    shape = read_shape(model_dir("deepseek_v3"))
    assert shape.kv_bytes_per_token == bytes_per_token(
        [KVShape(1, 72, 64, latent=True)] * 2, torch.float32
    )
