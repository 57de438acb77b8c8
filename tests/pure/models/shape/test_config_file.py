"""How weights are rounded is found wherever savers put it, for loader and planner alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import ModelError
from quire.models.shape import config_files, read_checkpoint, read_shape, read_stored

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 64,
    "torch_dtype": "float16",
}
GPTQ = {"bits": 8, "group_size": 32, "desc_act": False, "damp_percent": 0.01, "sym": True}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8}}},
}
MODELOPT = {
    "producer": {"name": "modelopt", "version": "0.29.0"},
    "quantization": {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head"],
    },
}
PLACES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # What is added to config.json, what files are beside it, and the method.
    "config.json": ({"quantization_config": {"quant_method": "gptq", **GPTQ}}, {}, "gptq"),
    "its older name": ({"compression_config": COMPRESSED}, {}, "compressed-tensors"),
    "underscores": (
        {"quantization_config": {**COMPRESSED, "quant_method": "compressed_tensors"}},
        {},
        "compressed-tensors",
    ),
    "of the text": ({"text_config": {"quantization_config": COMPRESSED}}, {}, "compressed-tensors"),
    "AutoGPTQ": ({}, {"quantize_config.json": GPTQ}, "gptq"),
    "beside null": ({"quantization_config": None}, {"quantize_config.json": GPTQ}, "gptq"),
    "GPTQModel": (
        {},
        {"quantize_config.json": {**GPTQ, "quant_method": "gptq", "checkpoint_format": "gptq_v2"}},
        "gptq",
    ),
    "GPTQModel's AWQ": (
        {}, {"quantize_config.json": {"method": "awq", "bits": 4, "format": "gemm"}}, "awq"
    ),
    "AutoAWQ": (
        {},
        {"quant_config.json": {"w_bit": 4, "q_group_size": 64, "version": "GEMM"}},
        "awq",
    ),
    "ModelOpt": ({}, {"hf_quant_config.json": MODELOPT}, "fp8"),
    "the first counts": (
        {"quantization_config": COMPRESSED},
        {"quantize_config.json": GPTQ, "hf_quant_config.json": MODELOPT},
        "compressed-tensors",
    ),
}  # fmt: skip


def write(directory: Path, more: dict[str, Any], beside: dict[str, Any]) -> Path:
    for name, values in {"config.json": {**CONFIG, **more}, **beside}.items():
        (directory / name).write_text(json.dumps(values))
    return directory


@pytest.mark.parametrize("name", PLACES)
def test_wherever_it_is_said(name: str, tmp_path: Path) -> None:
    more, beside, method = PLACES[name]
    directory = write(tmp_path, more, beside)
    section = read_checkpoint(directory).fields.section("quantization_config")
    stored = read_stored(section)
    assert stored.method == method
    form = read_shape(directory).form
    assert form is not None
    assert method in form.name
    assert [path.name for path in config_files(directory)] == ["config.json", *beside]


def test_what_is_wrong_there_names_the_file(tmp_path: Path) -> None:
    write(tmp_path, {}, {"quantize_config.json": {**GPTQ, "bits": 3}})
    section = read_checkpoint(tmp_path).fields.section("quantization_config")
    with pytest.raises(ModelError, match=r"quantize_config\.json has 3 bits"):
        read_stored(section)
    (tmp_path / "quantize_config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"quantize_config\.json does not hold a JSON object"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("quantization", [{}, {"quant_algo": None, "kv_cache_quant_algo": "FP8"}])
def test_keys_and_values_alone_are_no_weights(quantization: Any, tmp_path: Path) -> None:
    write(tmp_path, {}, {"hf_quant_config.json": {"quantization": quantization}})
    assert "quantization_config" not in read_checkpoint(tmp_path).fields


def test_overrides_are_over_all_files(tmp_path: Path) -> None:
    write(tmp_path, {}, {"quantize_config.json": GPTQ})
    assert (
        "quantization_config" not in read_checkpoint(tmp_path, {"quantization_config": None}).fields
    )


@pytest.mark.parametrize(
    ("more", "dtype"),
    [
        ({"torch_dtype": None}, None),
        ({"torch_dtype": "auto"}, None),
        ({"torch_dtype": None, "dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": None, "text_config": {"torch_dtype": "bfloat16"}}, "bfloat16"),
        ({"dtype": "float32"}, "float32"),
    ],
)
def test_the_type_of_weights(more: dict[str, Any], dtype: str | None, tmp_path: Path) -> None:
    assert read_checkpoint(write(tmp_path, more, {})).dtype == dtype
