"""Adapters as PEFT writes them, and what becomes of a checkpoint that one is merged into."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
PREFIX = "base_model.model."


def save_adapter(
    directory: Path,
    model: Path,
    seed: int = 0,
    rank: int = 4,
    targets: Sequence[str] = ALL,
    strength: float = 0.3,
    **fields: Any,
) -> Path:
    """One of random matrices for a model; ``fields`` are the config's."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(targets),
        **fields,
    }
    for name, weight in sorted(load_file(model / "model.safetensors").items()):
        module = name.removesuffix(".weight")
        if not module.endswith(tuple(targets)) or weight.dim() != 2:
            continue
        own = _of(config.get("rank_pattern", {}), module, rank)
        outputs, inputs = weight.shape
        for half, shape in (("A", (own, inputs)), ("B", (outputs, own))):
            values = torch.randn(shape, generator=generator) * strength / math.sqrt(shape[1])
            tensors[f"{PREFIX}{module}.lora_{half}.weight"] = values
        if fields.get("use_dora"):
            learned = 0.7 + 0.6 * torch.rand(outputs, generator=generator)
            norms = weight.float().norm(dim=1)
            tensors[f"{PREFIX}{module}.lora_magnitude_vector"] = norms * learned
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def merge(model: Path, adapter: Path, directory: Path) -> Path:
    """The model's checkpoint with W + scale B A in the place of W, by PEFT's formula.

    Of a DoRA its rows have the lengths that the adapter says.
    """
    shutil.copytree(model, directory)
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    weights = load_file(model / "model.safetensors")
    for name, down in tensors.items():
        if ".lora_A." not in name:
            continue
        module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        rank = len(down)
        alpha = _of(config.get("alpha_pattern", {}), module, config["lora_alpha"])
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        weight = weights[f"{module}.weight"]
        delta = scale * tensors[name.replace("lora_A", "lora_B")].double() @ down.double()
        merged = weight.double() + delta
        if config.get("use_dora"):
            magnitude = tensors[f"{PREFIX}{module}.lora_magnitude_vector"].double()
            merged *= (magnitude / merged.norm(dim=1))[:, None]
        weights[f"{module}.weight"] = merged.to(weight.dtype)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _of(pattern: Mapping[str, Any], module: str, default: Any) -> Any:
    """The value of the first name that the module's ends with."""
    return next((value for end, value in pattern.items() if module.endswith(end)), default)
