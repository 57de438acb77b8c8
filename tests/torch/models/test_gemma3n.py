"""Gemma 3n: what its layers keep, what of its gates is cut, its files, and what is refused.

That it computes what transformers computes is tested where other families are; see ``GEMMAS``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.core.errors import ConfigError, ModelError
from quire.models import llama
from quire.models.blueprint import Blueprint
from quire.models.config import read_config
from quire.models.gguf import config_of, open_gguf
from quire.models.loader import check_divides, check_servable, load_model
from quire.models.shape import read_shape
from support.gguf_gemmas import write_gemma
from support.hf_reference import hf_logits, random_prompts
from support.paged_harness import PagedHarness
from support.small_models import make_model

ModelDir = Callable[[str], Path]

# As google/gemma-3n-E2B-it publishes it, but for fields of images and sounds.
_E2B: Mapping[str, Any] = {
    "architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n",
    "torch_dtype": "bfloat16", "eos_token_id": [1, 106], "audio_soft_tokens_per_image": 188,
    "text_config": {
        "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 20, "altup_active_idx": 0,
        "altup_coef_clip": 120.0, "altup_correct_scale": True, "altup_lr_multiplier": 1.0,
        "altup_num_inputs": 4, "attention_bias": False, "attention_dropout": 0.0,
        "final_logit_softcapping": 30.0, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2048,
        "hidden_size_per_layer_input": 256, "initializer_range": 0.02,
        "intermediate_size": [8192] * 30, "laurel_rank": 64,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 6,
        "max_position_embeddings": 32768, "model_type": "gemma3n_text", "num_attention_heads": 8,
        "num_hidden_layers": 30, "num_key_value_heads": 2, "num_kv_shared_layers": 10,
        "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6, "rope_local_base_freq": 10000.0,
        "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 512,
        "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 262400,
        "vocab_size_per_layer_input": 262144,
    },
    "vision_config": {"model_type": "gemma3n_vision"},
    "audio_config": {"model_type": "gemma3n_audio"},
}  # fmt: skip


def _plan(directory: Path) -> Blueprint:
    plan: Blueprint = llama.FAMILY.read(read_config(directory))
    return plan


def test_e2b_as_it_is_published(tmp_path: Path) -> None:
    """It keeps what 16 layers of a window and 4 of full attention make, of its 30."""
    (tmp_path / "config.json").write_text(json.dumps(_E2B))
    shape = read_shape(tmp_path)
    cache = shape.cache()
    assert len(cache.windows) == 20 and cache.windows.count(512) == 16
    assert cache.bytes_per_token == 20 * 2 * 2 * 256 * 2 == 40_960
    layers = 30 * (
        3 * 2048 * 8192 + 2 * 2048 * 8 * 256  # MLP; queries and output
        + 3 * 2048 * 256 + 2 * 2048 * 64 + 4 * (2048 + 20)  # given; low rank; streams
    )  # fmt: skip
    keys, ends = 20 * 2 * 2048 * 2 * 256, 2 * 3 * 2048**2
    tables = 262_400 * 2048 + 262_144 * 30 * 256
    norms = 30 * 2 * 2048
    assert shape.num_params == layers + keys + ends + tables + norms
    assert shape.num_params == pytest.approx(4_435_182_688, rel=2e-4)  # as transformers makes it
    assert shape.weight_bytes == 2 * shape.num_params


def test_gates_are_cut_where_transformers_cuts_them(tmp_path: Path) -> None:
    """At 1.6448536 deviations, in float32, by the pattern or by how many layers there are."""
    config = json.loads(json.dumps(_E2B))
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = _plan(tmp_path).streams
    del config["text_config"]["activation_sparsity_pattern"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    by_itself = _plan(tmp_path).streams
    assert told is not None and told == by_itself
    cut = torch.distributions.Normal(0, 1).icdf(torch.tensor(0.95)).item()
    assert told.cuts == (cut,) * 10 + (None,) * 20


def logits(directory: Path) -> Tensor:
    return PagedHarness(load_model(directory)).prefill(random_prompts(30), 7)[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"altup_active_idx": 0, "altup_num_inputs": 2, "tie_word_embeddings": True},
        {"altup_correct_scale": False, "num_kv_shared_layers": 0},
        {"altup_num_inputs": 8, "activation_sparsity_pattern": None, "intermediate_size": 80},
    ],
)
def test_other_streams(fields: dict[str, Any], tmp_path: Path) -> None:
    directory = make_model("gemma3n", tmp_path, **fields)
    expected = hf_logits(directory, random_prompts(30)[0])
    assert (logits(directory) - expected).abs().max() < 1e-4


def test_the_decoder_of_a_whole(model_dir: ModelDir, tmp_path: Path) -> None:
    """Its tensors are called otherwise, and those of images and sounds are beside them."""
    source = model_dir("gemma3n")
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    named = {name.replace("model.", "model.language_model.", 1): t for name, t in tensors.items()}
    for other in ("vision_tower.timm_model.a", "audio_tower.b", "embed_vision.c", "embed_audio.d"):
        named[f"model.{other}.weight"] = torch.ones(2)
    save_file(named, tmp_path / "model.safetensors")
    whole = {**_E2B, "text_config": config, "torch_dtype": "float32", "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    assert check_servable(tmp_path) == "Quire"
    assert torch.equal(logits(tmp_path), logits(source))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"altup_num_inputs": 1}, "altup_num_inputs must be 2 to 8"),
        ({"altup_num_inputs": 9}, "altup_num_inputs must be 2 to 8"),
        ({"altup_active_idx": 3}, "altup_active_idx must be at least 0 and less than 3"),
        ({"laurel_rank": 0}, "laurel_rank must be at least 1"),
        ({"hidden_size_per_layer_input": 0}, "hidden_size_per_layer_input must be at least 1"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers must be at least 0 and less than 6"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers must be less"),
        ({"intermediate_size": [96] * 5}, "intermediate_size must be one for each of 6 layers"),
        ({"intermediate_size": [96] * 5 + [0]}, "intermediate_size must be at least 1"),
        ({"activation_sparsity_pattern": [0.5]}, "for each of 6 layers"),
        ({"activation_sparsity_pattern": [0.5] * 5 + [1.0]}, "at least 0 and less than 1"),
        ({"activation_sparsity_pattern": ["0.5"] * 6}, "at least 0 and less than 1"),
        ({"activation_sparsity_pattern": 0.5}, "activation_sparsity_pattern must be list"),
    ],
)
def test_what_cannot_be(
    fields: dict[str, object], named: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    config = json.loads((model_dir("gemma3n") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **fields}))
    with pytest.raises(ModelError, match=named):
        _plan(tmp_path)


def test_ranks_divide_every_layer(tmp_path: Path) -> None:
    """What is inside of MLPs has several sizes: 96 and 160."""
    config = read_config(make_model("gemma3n", tmp_path, num_attention_heads=64, head_dim=4))
    check_divides(config, 4)
    with pytest.raises(ConfigError, match=r"do not divide intermediate_size \(32\)"):
        check_divides(config, 64)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    target = tmp_path / "a.gguf"
    write_gemma(make_model("gemma3n", tmp_path / "source"), target)
    return target


def test_a_file_says_what_the_config_says(file: Path) -> None:
    own, source = _plan(file), _plan(file.parent / "source")
    assert own.streams == source.streams and own.by_layer == source.by_layer
    assert (own.windows, own.ropes[1].theta) == (source.windows, source.ropes[1].theta)


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("activation_sparsity_scale", [1.5], "a number for each of 6 layers"),
        ("activation_sparsity_scale", [float("nan")] * 6, "a number for each of 6 layers"),
        ("activation_sparsity_scale", [float("inf")] * 6, "a number for each of 6 layers"),
        ("activation_sparsity_scale", 1.5, "must be a number for each layer"),
        ("activation_sparsity_scale", None, "activation_sparsity_scale is missing"),
        ("attention.shared_kv_layers", None, "attention.shared_kv_layers is missing"),
        ("feed_forward_length", [96, 96], "one for each of 6 layers"),
    ],
)
def test_files_that_contradict_themselves(
    name: str, value: object, named: str, file: Path, tmp_path: Path
) -> None:
    opened = open_gguf(file)
    metadata = {**opened.metadata, f"gemma3n.{name}": value}
    if value is None:
        del metadata[f"gemma3n.{name}"]
    with pytest.raises(ModelError, match=named):
        config = config_of(opened._replace(metadata=metadata))
        (tmp_path / "config.json").write_text(json.dumps(config))
        _plan(tmp_path)


def test_a_file_of_other_streams_is_refused(file: Path, tmp_path: Path) -> None:
    """The number of matrices in one tensor is not what the file says."""
    data = file.read_bytes()
    before = b"gemma3n.altup.num_inputs" + (4).to_bytes(4, "little")
    assert data.count(before) == 1
    place = data.index(before) + len(before)
    other = tmp_path / "b.gguf"
    other.write_bytes(data[:place] + (4).to_bytes(4, "little") + data[place + 4 :])
    with pytest.raises(ModelError, match=r"altup_\w*proj.weight' has shape"):
        load_model(other)
