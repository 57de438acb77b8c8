"""What ``quantization_config`` says of weights, for loader and planner alike."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from quire.errors import ModelError
from quire.shape import Fields, ModelShape, StoredWeights, read_shape, read_stored

GROUP_0 = {
    "targets": ["Linear"],
    "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
}


def compressed(form: str = "int-quantized", **changes: Any) -> dict[str, Any]:
    config = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"]}
    return {**config, "config_groups": {"group_0": GROUP_0}, **changes}


def weights(**changes: Any) -> dict[str, Any]:
    group = {**GROUP_0, "weights": {**GROUP_0["weights"], **changes}}  # type: ignore[dict-item]
    return {"config_groups": {"group_0": group}}


def read(config: dict[str, Any]) -> StoredWeights:
    return read_stored(Fields(config, "config.json: quantization_config"))


@pytest.mark.parametrize(
    ("config", "bytes_kept"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.5 + 2 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": True}, 1),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, 0.5 + 2 / 64),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 2),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 2),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1),
        (compressed(), 1),
        (compressed("float-quantized", **weights(type="float")), 2),
        (
            compressed("pack-quantized", **weights(num_bits=4, strategy="group", group_size=32)),
            0.5 + 2 / 32,
        ),
        (compressed(kv_cache_scheme={"num_bits": 8, "type": "float"}), 1),
    ],
    ids=str,
)
def test_bytes_of_a_weight(config: dict[str, Any], bytes_kept: float) -> None:
    assert read(config).scheme.bytes_kept(2) == bytes_kept


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "hqq"}, "quant_method hqq; supported: awq, bitsandbytes, compressed"),
        ({"quant_method": "torchao"}, "take the model it was made of, with --quantization int8"),
        ({"bits": 4}, "quant_method unnamed"),
        ({"quant_method": "gptq", "bits": 3}, "3 bits; supported: 2, 4, 8"),
        ({"quant_method": "gptq", "group_size": 0}, "group_size 0"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "checkpoint_format marlin"),
        ({"quant_method": "gptq", "lm_head": True}, "lm_head true"),
        ({"quant_method": "gptq", "dynamic": {"-:a": {}, "+:b": {}}}, "dynamic (+:b)"),
        ({"quant_method": "awq", "version": "gemv"}, "version gemv; supported: gemm"),
        ({"quant_method": "awq", "bits": 8}, "8 bits; supported: 4"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size must be two"),
        ({"quant_method": "bitsandbytes"}, "neither load_in_4bit nor load_in_8bit"),
        (compressed("nvfp4-pack-quantized"), "format nvfp4-pack-quantized; supported"),
        (compressed("mxfp4-pack-quantized"), "use --quantization"),
        (compressed(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config sparse-24"),
        (compressed(transform_config={"config_groups": {}}), "transform_config"),
        (compressed(quantization_status="frozen"), "quantization_status frozen"),
        (compressed(config_groups={}), "config_groups must be an object with a group"),
        (compressed("float-quantized", **weights(type="float", num_bits=4)), "of 4 bits"),
        (compressed(**weights(strategy="tensor_group")), "strategy is 'tensor_group'"),
        (compressed(ignore=["re:("]), "ignore must be a list of short regular expressions"),
        (compressed(ignore=["re:(a+)+$"]), "ignore must be a list of short regular expressions"),
        (compressed(ignore=["re:" + ".*" * 20]), "ignore must be a list of short regular"),
        (compressed(ignore=[3]), "ignore must be a list of names"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        read(config)


def shape(tmp_path: Path, **section: Any) -> ModelShape:
    fields = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**fields, **({"quantization_config": section} if section else {})}))
    return read_shape(path)


def test_the_planner_knows_the_bytes(tmp_path: Path) -> None:
    plain = shape(tmp_path)
    tables = 2 * 128256 * 4096 * 2
    assert plain.weight_bytes == 2 * plain.num_params
    rounded = shape(tmp_path, quant_method="awq", bits=4, group_size=128)
    assert rounded.weight_bytes == pytest.approx(
        tables + (plain.weight_bytes - tables) / 2 * (0.5 + 2 / 128), rel=1e-3
    )
    assert shape(tmp_path, quant_method="fp8").weight_bytes == plain.weight_bytes
    assert rounded.num_params == plain.num_params
