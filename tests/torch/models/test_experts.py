"""Checkpoints of mixtures of experts, as they come: by expert or stacked, whole or not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.core.errors import ModelError
from quire.models.loader import load_model
from quire.models.shape import read_shape
from support.hf_reference import random_prompts
from support.paged_harness import PagedHarness

ModelDir = Callable[[str], Path]
Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def changed(source: Path, target: Path, change: Change, **fields: Any) -> Path:
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **fields}))
    save_file(change(load_file(source / "model.safetensors")), target / "model.safetensors")
    return target


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As transformers 5 holds them in memory."""
    experts = [name for name in tensors if ".experts." in name]
    kept = {name: t for name, t in tensors.items() if name not in experts}
    for prefix in sorted({name.split(".experts.")[0] for name in experts}):
        count = len({name.split(".")[5] for name in experts if name.startswith(prefix)})

        def all_of(part: str, prefix: str = prefix, count: int = count) -> Tensor:
            return torch.stack(
                [tensors[f"{prefix}.experts.{n}.{part}_proj.weight"] for n in range(count)]
            )

        both = torch.cat([all_of("gate"), all_of("up")], dim=1)
        kept |= {
            f"{prefix}.experts.gate_up_proj": both,
            f"{prefix}.experts.down_proj": all_of("down"),
        }
    return kept


@pytest.mark.parametrize("quantization", [None, "int4"])
@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe"])
def test_stacked_experts_are_the_same(
    family: str, quantization: str | None, model_dir: ModelDir, tmp_path: Path
) -> None:
    texts = random_prompts(5, 12)
    apart, together = (
        PagedHarness(load_model(directory, quantization=quantization)).prefill(texts, 7)
        for directory in (model_dir(family), changed(model_dir(family), tmp_path, stacked))
    )
    assert all(torch.equal(a, b) for a, b in zip(apart, together, strict=True))


@pytest.mark.parametrize(
    ("family", "missing", "fields", "message"),
    [
        ("mixtral", "0.block_sparse_moe.experts.4.w3", {}, r"no tensor .*experts.4.w3"),
        ("qwen3_moe", "mlp.gate.weight", {}, r"no tensor .*layers.0.mlp.gate.weight"),
        ("mixtral", "", {"num_local_experts": 5}, r"gate.weight has shape \(6, 64\)"),
        ("mixtral", "", {"num_local_experts": 7}, r"gate.weight has shape|no tensor"),
        ("granite_moe", "", {"num_local_experts": 4}, r"has shape \(6, 96, 64\)"),
        ("mixtral", "", {"num_experts_per_tok": 7}, "num_experts_per_tok is 7, but there"),
        ("mixtral", "", {"num_experts_per_tok": 0}, "num_experts_per_tok must be at least"),
        ("qwen2_moe", "", {"shared_expert_intermediate_size": 8}, "shared_expert.gate_proj"),
        ("qwen3_moe", "", {"mlp_only_layers": []}, "no tensor model.layers.1.mlp"),
        ("qwen3_moe", "", {"num_experts": None, "num_local_experts": None}, "is missing"),
    ],
    ids=str,
)
def test_faults_name_the_tensor_or_the_field(
    family: str,
    missing: str,
    fields: dict[str, Any],
    message: str,
    model_dir: ModelDir,
    tmp_path: Path,
) -> None:
    def all_but_missing(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: t for name, t in tensors.items() if not missing or missing not in name}

    directory = changed(model_dir(family), tmp_path, all_but_missing, **fields)
    with pytest.raises(ModelError, match=message):
        load_model(directory)


@pytest.mark.parametrize(
    "family", ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granite_moe", "gpt_oss"]
)
def test_what_a_token_reads(family: str, model_dir: ModelDir) -> None:
    model, shape = load_model(model_dir(family)), read_shape(model_dir(family) / "config.json")
    assert model.experts is not None and shape.experts is not None
    num, chosen, _ = model.experts
    assert (num, chosen) == (shape.experts.count, shape.experts.chosen)
    read = shape.weight_bytes_read(1)
    assert model.token_bytes == pytest.approx(read, rel=0.05)  # routers are padded
    looked_up = 0 if shape.tied_embeddings else 4 * shape.vocab_size * shape.hidden_size
    assert shape.active_params * 4 == pytest.approx(read + looked_up, rel=0.01)
    assert shape.weight_bytes_read(1) < shape.weight_bytes_read(2) < shape.weight_bytes
