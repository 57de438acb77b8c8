"""Rounded weights compute what a float model with the same weights computes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.core.errors import ConfigError, ModelError
from quire.kernels.compiled import KERNELS
from quire.kernels.packing import Format
from quire.models.linear import Quantization
from quire.models.linear.checkpoints.base import unpacked
from quire.models.linear.rounding import round_groups
from quire.models.loader import load_model
from support import stored_weights
from support.hf_reference import hf_logits, hf_model, random_prompts
from support.paged_harness import PagedHarness
from support.rounded_checkpoints import (
    Tensors,
    as_floats,
    awq,
    gptq,
    is_projection,
    rewritten,
    rounded,
)
from support.small_models import SMALL_LLAMA, save_model
from support.stored_weights import packed as pack_codes

ModelDir = Callable[[str], Path]

# Fused, with biases, with a head that is the embedding; 48 inputs that int4 lacks; with outputs in
# another order than they are stored in.
FAMILIES = ("biases", "smollm", "phi3", "qwen3", "opt", "opt-350m", "gemma3", "gptj", "falcon",
            "qwen2_moe", "granite_moe")  # fmt: skip


def logits(directory: Path, **options: Any) -> list[Tensor]:
    return PagedHarness(load_model(directory, **options)).prefill(random_prompts(5, 30), 7)


def difference(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


def by_outputs(weight: Tensor) -> Tensor:
    """To the nearest of 255 steps, output by output."""
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    return (weight / step).round().nan_to_num() * step  # rows of zeros: padding


def by_groups(weight: Tensor, bits: int, importance: Tensor | None = None) -> Tensor:
    """As we round it, which test_rounding.py is about."""
    form = {5: Format.int5, 6: Format.int6, 8: Format.grouped_int8}[bits]
    return round_groups(weight, form, importance=importance).floats(torch.float32)


def importance_in_transformers(directory: Path) -> dict[str, Tensor]:
    """By weight, the mean squares of its inputs beside the largest, as powers of two."""
    model, found = hf_model(directory), dict[str, Tensor]()

    def note(name: str, x: Tensor) -> None:
        squares = x.flatten(0, -2).square().sum(dim=0)
        found[f"{name}.weight"] = (squares / squares.max()).clamp_min(2**-16).log2().round().exp2()

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "project_" not in name:
            module.register_forward_pre_hook(lambda _, x, name=name: note(name, x[0]))
    length = min(256, model.config.max_position_embeddings)
    ids = torch.randint(
        model.config.vocab_size, (length,), generator=torch.Generator().manual_seed(0)
    )
    with torch.inference_mode():
        model(ids[None], use_cache=False)
    return found


def in_8_bits(weight: Tensor) -> Tensor:
    return by_outputs(weight) if weight.shape[1] % 64 else by_groups(weight, 8)


def few_bits(name: str) -> int:
    """Of a weight in int4, in a small model: those whose loss shows most have 6."""
    bare = name.removesuffix(".weight")
    if "self_att" in bare and bare.endswith(("q_proj", "o_proj", "out_proj", "dense")):
        return 5
    more = bare.endswith(("down_proj", "fc2", "dense_4h_to_h")) or "attn" in bare
    return 6 if more or "attention" in bare else 5


def is_table(name: str) -> bool:
    tables = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "lm_head.weight")
    return name.endswith(tables)


def rounded_model(source: Path, target: Path, quantization: str) -> Path:
    """A float model with the weights that ``quantization`` gives."""
    tied = "lm_head.weight" not in load_names(source)
    mixture = any("expert" in name or "moe" in name for name in load_names(source))
    known = {} if mixture else importance_in_transformers(source)

    def change(name: str, tensor: Tensor) -> Tensors:
        is_head = name == "lm_head.weight" or (tied and is_table(name))
        if is_head and quantization == "int8":
            return {name: in_8_bits(tensor)}
        if tensor.ndim == 3:  # experts
            return {name: torch.stack([change(name, part)[name] for part in tensor])}
        if "gate.weight" in name or "router" in name:
            return {name: tensor}
        if tensor.ndim < 2 or "embed_positions" in name:
            return {name: tensor}
        if is_table(name) and quantization == "int8":
            return {name: tensor}
        if quantization == "int4" and tensor.shape[1] % 32 == 0:
            importance = known.get("lm_head.weight" if is_head else name)
            return {name: by_groups(tensor, 6 if is_head else few_bits(name), importance)}
        if quantization == "int4":
            return {name: by_outputs(tensor)}
        return {name: in_8_bits(tensor)}

    return rewritten(source, target, change)


def load_names(directory: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(directory / "model.safetensors", framework="pt") as file:
        return list(file.keys())


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_rounded_and_nothing_else(
    family: str, quantization: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    directory = rounded_model(model_dir(family), tmp_path / "rounded", quantization)
    expected = [hf_logits(directory, text) for text in random_prompts(5, 30)]
    assert difference(logits(model_dir(family), quantization=quantization), expected) < 1e-3
    assert difference(logits(model_dir(family)), expected) > 1e-2, "rounding must show"


@pytest.mark.parametrize(("weights", "quantization"), [(None, "w8a8"), ("int4", "w4a8")])
@pytest.mark.parametrize("family", FAMILIES)
def test_activations_are_rounded_too(
    family: str, weights: str | None, quantization: str, model_dir: ModelDir
) -> None:
    expected = logits(model_dir(family), quantization=weights)
    found = logits(model_dir(family), quantization=quantization)
    for a, b in zip(found, expected, strict=True):
        centred = b - b.mean(dim=1, keepdim=True)
        off = (a - b).norm(dim=1) / centred.norm(dim=1)
        assert 1e-3 < float(off.median()) < 0.1, "a few tokens may go to other experts"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("quantization", ["int8", "int4", "w8a8", "w4a8"])
def test_other_dtypes(quantization: str, dtype: str, model_dir: ModelDir) -> None:
    expected = logits(model_dir("smollm"), quantization=quantization)
    found = logits(model_dir("smollm"), quantization=quantization, dtype=dtype)
    for a, b in zip(found, expected, strict=True):
        assert float((a - b).norm() / b.norm()) < 0.2  # these models magnify bfloat16's rounding


def test_rounded_weights_take_less_memory(model_dir: ModelDir) -> None:
    sizes = [
        load_model(model_dir("smollm"), quantization=quantization).weight_bytes
        for quantization in (None, "int8", "int4")
    ]
    assert sizes[0] > 3 * sizes[1] > 3 * sizes[2]


def checkpoints(source: Path, target: Path, method: str, **options: Any) -> tuple[Path, Path]:
    """A rounded checkpoint, and the float model with its weights."""
    group = options.get("group_size", 32)
    symmetric = options.get("sym", True) and method == "gptq"
    offset = 0 if options.get("checkpoint_format") == "gptq_v2" else 1

    def pack(name: str, tensor: Tensor) -> Tensors:
        if not is_projection(name):
            return {name: tensor}
        bare = name.removesuffix(".weight")
        size = tensor.shape[1] if group == -1 else group
        if method == "awq":
            return awq(bare, tensor, size)
        return gptq(bare, tensor, size, symmetric, offset)

    def widen(name: str, tensor: Tensor) -> Tensors:
        if not is_projection(name):
            return {name: tensor}
        size = tensor.shape[1] if group == -1 else group
        return {name: as_floats(*rounded(tensor, size, symmetric))}

    config = {"quant_method": method, "bits": 4, **options}
    config.setdefault("group_size", group)
    return rewritten(source, target / "rounded", pack, config), rewritten(
        source, target / "floats", widen
    )


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("gptq", {}),
        ("gptq", {"sym": False, "desc_act": False}),
        ("gptq", {"sym": False, "checkpoint_format": "gptq_v2"}),
        ("gptq", {"group_size": -1}),
        ("awq", {"version": "gemm", "zero_point": True}),
        ("awq", {"group_size": 16}),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["biases", "phi3"])
def test_rounded_checkpoints(
    family: str, method: str, options: dict[str, Any], model_dir: ModelDir, tmp_path: Path
) -> None:
    packed, floats = checkpoints(model_dir(family), tmp_path, method, **options)
    expected = [hf_logits(floats, text) for text in random_prompts(5, 30)]
    assert difference(logits(packed), expected) < 1e-3


def test_inputs_in_the_order_of_their_activations(model_dir: ModelDir, tmp_path: Path) -> None:
    """Alike for q, k and v, as GPTQ makes them; gate and up differ, and are floats."""
    packed, floats = checkpoints(model_dir("llama"), tmp_path, "gptq")
    orders: dict[str, Tensor] = {}

    def order_of(name: str, inputs: int) -> Tensor:
        layer, _, projection = name.rpartition(".")
        key = layer if projection in ("q_proj", "k_proj", "v_proj") else name
        return orders.setdefault(key, torch.randperm(inputs))

    def shuffled(name: str, tensor: Tensor) -> Tensors:
        bare, _, part = name.rpartition(".")
        if part == "g_idx":
            return {name: tensor[order_of(bare, len(tensor))]}
        if part == "qweight":
            codes = unpacked(tensor.T, 4)[:, order_of(bare, 8 * len(tensor))]
            return {name: pack_codes(codes.numpy(), 4).T}
        return {name: tensor}

    def same(name: str, tensor: Tensor) -> Tensors:
        if not is_projection(name):
            return {name: tensor}
        return {name: tensor[:, order_of(name.removesuffix(".weight"), tensor.shape[1])]}

    reordered = rewritten(packed, tmp_path / "shuffled", shuffled)
    expected = rewritten(floats, tmp_path / "same", same)
    texts = [hf_logits(expected, text) for text in random_prompts(5, 30)]
    assert difference(logits(reordered), texts) < 1e-3


def test_parts_that_are_rounded_in_different_ways(model_dir: ModelDir, tmp_path: Path) -> None:
    """v of floats beside q and k of int4, and an up of int8 beside a gate of int4; biases too."""
    kept: dict[str, Tensor] = {}

    def pack(name: str, tensor: Tensor) -> Tensors:
        bare = name.removesuffix(".weight")
        if not is_projection(name) or "v_proj" in name:
            return {name: tensor}
        if "up_proj" in name:
            codes, scales = by_int8(tensor)
            kept[name] = codes * scales
            return {name: codes.to(torch.int8), f"{bare}.weight_scale": scales}
        codes, zeros, steps = rounded(tensor, 32, symmetric=True)
        scales = torch.from_numpy(steps)
        kept[name] = as_floats(codes, zeros, steps)
        return {
            f"{bare}.weight_packed": pack_codes(codes, 4),
            f"{bare}.weight_scale": scales,
            f"{bare}.weight_shape": torch.tensor(tensor.shape),
        }

    int4 = {"num_bits": 4, "strategy": "group", "group_size": 32}
    config = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            "a": {
                "targets": ["re:.*up_proj"],
                "format": "int-quantized",
                "weights": {"num_bits": 8, "strategy": "channel"},
                "input_activations": stored_weights.DYNAMIC,
            },
            "b": {"targets": ["Linear"], "format": "pack-quantized", "weights": int4},
        },
        "ignore": ["lm_head", "re:.*v_proj"],
    }
    packed = rewritten(model_dir("biases"), tmp_path / "packed", pack, config)
    floats = rewritten(model_dir("biases"), tmp_path / "floats", lambda n, t: {n: kept.get(n, t)})
    config["config_groups"]["a"].pop("input_activations")
    exact = rewritten(packed, tmp_path / "exact", lambda n, t: {n: t}, config)
    expected = [hf_logits(floats, text) for text in random_prompts(5, 30)]
    assert difference(logits(exact), expected) < 1e-3
    assert 1e-3 < difference(logits(packed), expected) < 1, "rows of up are rounded"


def by_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = weight.abs().amax(dim=1, keepdim=True) / 127
    return (weight / scales).round(), scales


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"quant_method": "gptq", "bits": 3}, "3 bits; supported: 2, 4, 8"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version gemv; supported: gemm"),
        ({"quant_method": "gptq", "group_size": 0}, "group_size 0"),
        ({"quant_method": "gptq", "group_size": 48}, "of 48 do not divide"),
    ],
    ids=str,
)
def test_unknown_formats_are_refused(
    section: dict[str, Any], message: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    packed, _ = checkpoints(model_dir("llama"), tmp_path, "gptq")
    with pytest.raises(ModelError, match=message):
        load_model(rewritten(packed, tmp_path / "other", lambda n, t: {n: t}, section))


def test_rounding_twice_is_refused(model_dir: ModelDir, tmp_path: Path) -> None:
    packed, _ = checkpoints(model_dir("llama"), tmp_path, "awq")
    with pytest.raises(ConfigError, match=r"are quantised already; .* or write w8a8"):
        load_model(packed, quantization="int8")


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_rounded_checkpoints_with_rounded_activations(
    method: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    """Codes and zeros stay; the head, which was not rounded, has 8 bits."""
    packed, _ = checkpoints(model_dir("llama"), tmp_path, method, desc_act=True)
    exact, found = logits(packed), logits(packed, quantization="w8a8")
    for a, b in zip(found, exact, strict=True):
        assert 1e-3 < float((a - b).norm() / (b - b.mean(dim=1, keepdim=True)).norm()) < 0.1


@pytest.mark.parametrize("quantization", [kind.value for kind in Quantization])
def test_without_the_kernels(
    quantization: str, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits(model_dir("smollm"))
    monkeypatch.setitem(sys.modules, KERNELS, None)
    assert difference(logits(model_dir("smollm")), expected) < 1e-4
    with pytest.raises(ConfigError, match=r"quantised weights need the kernels in C\+\+"):
        load_model(model_dir("smollm"), quantization=quantization)


def test_inputs_that_no_group_divides_are_rounded_to_int8(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    fields = {**SMALL_LLAMA, "hidden_size": 40, "num_attention_heads": 2, "intermediate_size": 40,
              "tie_word_embeddings": True}  # fmt: skip
    directory = save_model(LlamaConfig(**fields), tmp_path / "llama")
    found = logits(directory, quantization="int4")
    assert difference(found, logits(directory, quantization="int8")) == 0
