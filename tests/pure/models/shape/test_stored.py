"""What ``quantization_config`` says of weights, for loader and planner alike."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import ModelError
from quire.models.shape import ConfigFields, ModelShape, StoredWeights, read_shape, read_stored

GROUP_0 = {
    "targets": ["Linear"],
    "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
}


def compressed(form: str = "int-quantized", **changes: Any) -> dict[str, Any]:
    config = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"]}
    return {**config, "config_groups": {"group_0": GROUP_0}, **changes}


def rounded_by_auto(**changes: Any) -> dict[str, Any]:
    form = {"packing_format": "auto_round:auto_gptq"} if "backend" not in changes else {}
    return {"quant_method": "auto-round", "bits": 4, "group_size": 128, **form, **changes}


def weights(**changes: Any) -> dict[str, Any]:
    group = {**GROUP_0, "weights": {**GROUP_0["weights"], **changes}}  # type: ignore[dict-item]
    return {"config_groups": {"group_0": group}}


def read(config: dict[str, Any]) -> StoredWeights:
    return read_stored(ConfigFields(config, "config.json: quantization_config"))


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
        ({"quant_method": "auto-round", "bits": 4, "group_size": 32}, 0.5 + 2 / 32),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 2),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, 2),
        (compressed(quantization_status="frozen"), 1),
        (compressed(kv_cache_scheme={"num_bits": 8, "type": "float"}), 1),
    ],
    ids=str,
)
def test_bytes_of_a_weight(config: dict[str, Any], bytes_kept: float) -> None:
    assert read(config).scheme.bytes_kept(2) == bytes_kept


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"quant_method": "hqq"},
            "quant_method hqq; supported: auto-round, awq, bitsandbytes",
        ),
        ({"quant_method": "torchao"}, "take the model it was made of, with --quantization int8"),
        ({"bits": 4}, "quant_method unnamed"),
        ({"quant_method": "gptq", "bits": 3}, "3 bits; supported: 2, 4, 8"),
        ({"quant_method": "gptq", "group_size": 0}, "group_size 0"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "checkpoint_format marlin"),
        ({"quant_method": "gptq", "lm_head": True}, "lm_head true"),
        ({"quant_method": "gptq", "dynamic": {"-:a": {}, "+:b": {}}}, "dynamic (+:b)"),
        ({"quant_method": "gptq", "is_marlin_format": True}, "checkpoint_format marlin"),
        ({"quant_method": "gptq", "format": "bitblas"}, "checkpoint_format bitblas"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo NVFP4; supported: FP8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "quant_algo FP8_PB_WO"),
        ({"quant_method": "modelopt"}, "quant_algo none; supported: FP8"),
        (rounded_by_auto(packing_format="auto_round:tritonv2"), "packing_format auto_round:triton"),
        (rounded_by_auto(packing_format="auto_round:fp8_static"), "packing_format auto_round:fp8"),
        (rounded_by_auto(backend="itrex"), "packing_format itrex"),
        (rounded_by_auto(data_type="mx_fp"), "data_type mx_fp; supported: int"),
        (rounded_by_auto(act_bits=8), "act_bits below 16"),
        (rounded_by_auto(bits=3), "3 bits; supported: 2, 4, 8"),
        (
            rounded_by_auto(extra_config={"model.layers.1.mlp.up_proj": {"bits": 8}}),
            "(model.layers.1",
        ),
        (rounded_by_auto(extra_config={"a": {"group_size": 64}}), "extra_config (a)"),
        (rounded_by_auto(rotation_config={"a": 1}), "rotation_config"),
        ({"quant_method": "awq", "version": "gemv"}, "version gemv; supported: gemm"),
        ({"quant_method": "awq", "bits": 8}, "8 bits; supported: 4"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size must be two"),
        ({"quant_method": "bitsandbytes"}, "neither load_in_4bit nor load_in_8bit"),
        (compressed("nvfp4-pack-quantized"), "format nvfp4-pack-quantized; supported"),
        (compressed("mxfp4-pack-quantized"), "use --quantization"),
        (compressed(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config sparse-24"),
        (compressed(transform_config={"config_groups": {}}), "transform_config"),
        (compressed(quantization_status="calibration"), "quantization_status calibration"),
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
    fp8 = shape(tmp_path, quant_method="fp8")
    assert fp8.weight_bytes == pytest.approx((tables + plain.weight_bytes) / 2, rel=1e-3)
    assert fp8.as_quire_keeps().weight_bytes == plain.weight_bytes  # as floats of 16 bits
    assert rounded.num_params == plain.num_params


@pytest.mark.parametrize(
    ("form", "method", "offset"),
    [
        ("auto_round:auto_gptq", "gptq", 1),
        ("auto_round:gptqmodel", "gptq", 0),
        ("auto_round", "gptq", 0),
        ("auto_round:auto_awq", "awq", 0),
    ],
)
def test_auto_round_packs_as_others(form: str, method: str, offset: int) -> None:
    as_floats = {"lm_head": {"bits": 16, "data_type": "float"}, "a": {"bits": 4}}
    found = read(rounded_by_auto(packing_format=form, extra_config=as_floats))
    assert (found.method, found.zero_offset) == (method, offset)
    assert (found.scheme.bits, found.scheme.group) == (4, 128)


def group(bits: int, *targets: str) -> dict[str, Any]:
    return {**GROUP_0, "targets": [*targets], "weights": {"num_bits": bits, "strategy": "channel"}}


DOWN = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    ("groups", "ignored", "bits"),
    [
        ([group(8, "Linear"), group(4, DOWN)], [], 4),
        ([group(4, DOWN), group(8, "Linear")], [], 4),
        ([group(8, "Linear"), group(4, "re:.*down_proj$")], [], 4),
        ([group(8, "re:.*down_proj$"), group(4, DOWN)], [], 4),
        ([group(4, "re:.*(b|d).*"), group(8, "re:.*down_proj$")], [], 4),  # by the alphabet
        ([group(8, "re:.*down_proj$"), group(4, "re:.*(b|d).*")], [], 4),
        ([group(8, "Linear", DOWN), group(4, DOWN)], [], 4),  # the last that names it so
        ([group(8, "Linear")], [DOWN], None),
        ([group(8, DOWN)], ["re:.*down_proj"], None),
        ([group(8, DOWN)], ["Linear"], None),
        ([group(8, "Embedding")], [], None),
        ([group(8, "model.layers.0.mlp")], [], None),
        ([group(8, "re:mlp.down_proj")], [], None),  # patterns begin where names begin
    ],
    ids=str,
)
def test_of_targets_that_overlap_the_nearest_counts(
    groups: list[dict[str, Any]], ignored: list[str], bits: int | None
) -> None:
    """As compressed-tensors, which wrote the weights: names, then patterns, then classes."""
    config = {f"group_{number}": one for number, one in enumerate(groups)}
    found = read(compressed(config_groups=config, ignore=ignored)).scheme_of(DOWN)
    assert (found.bits if found else None) == bits


def test_what_most_projections_have_is_what_is_planned() -> None:
    config = {"group_0": group(4, DOWN), "group_1": group(8, "Linear")}
    assert read(compressed(config_groups=config)).scheme.bits == 8
