"""MiMo: values narrower than keys, and layers with a window that have other heads than the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, SamplingParams
from quire.core.errors import ModelError
from quire.models.loader import load_model
from quire.models.shape import read_shape, shape_of
from quire.models.shape.fields import ConfigFields
from support.hf_reference import hf_logits, random_prompts
from support.paged_harness import PagedHarness
from support.small_models import make_model

FAMILY = "mimo_v2_flash"
TEXTS = random_prompts(5, 19, 43, 12, 9)
PUBLISHED: Mapping[str, Any] = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    "vocab_size": 152_576,
    "hidden_size": 4096,
    "intermediate_size": 16_384,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "hybrid_layer_pattern": ([0, 1, 1, 1, 1] + [0, 1, 1, 1, 1, 1] * 7 + [0]),
    "moe_layer_freq": [0] + [1] * 47,
    "add_full_attention_sink_bias": False,
    "add_swa_attention_sink_bias": True,
    "sliding_window": 128,
    "sliding_window_size": 128,
    "attention_chunk_size": 128,
    "attention_value_scale": 0.707,
    "partial_rotary_factor": 0.334,
    "rope_theta": 5_000_000,
    "swa_rope_theta": 10_000,
    "n_routed_experts": 256,
    "n_shared_experts": None,
    "num_experts_per_tok": 8,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": None,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "layernorm_epsilon": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "max_position_embeddings": 262_144,
    "torch_dtype": "bfloat16",
}
"""The fields of MiMo-V2-Flash as its makers write them."""

ModelDir = Callable[[str], Path]


def published(**more: Any) -> ConfigFields:
    return ConfigFields({**PUBLISHED, **more}, "config.json")


def in_its_makers_words(directory: Path, target: Path) -> Path:
    """The same model with a config as its makers write it."""
    own = json.loads((directory / "config.json").read_text())
    ropes, kinds = own.pop("rope_parameters"), own.pop("layer_types")
    far, near = ropes["full_attention"], ropes["sliding_attention"]
    window = own.pop("sliding_window") - 1
    own |= {
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind in kinds],
        "moe_layer_freq": [int(kind == "sparse") for kind in own.pop("mlp_layer_types")],
        "sliding_window": window,
        "sliding_window_size": window,
        "swa_num_key_value_heads": 2 * own["num_key_value_heads"],
        "layernorm_epsilon": own.pop("rms_norm_eps"),
        "rope_theta": far["rope_theta"],
        "swa_rope_theta": near["rope_theta"],
        "partial_rotary_factor": far["partial_rotary_factor"],
        "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True,
    }
    target.mkdir()
    for file in directory.iterdir():
        (target / file.name).symlink_to(file)
    (target / "config.json").unlink()
    (target / "config.json").write_text(json.dumps(own))
    return target


def test_the_published_model_has_its_bytes() -> None:
    """By hand: nine layers keep 4 heads of every token, 39 keep 8 heads, of 192 + 128 numbers."""
    shape = shape_of("MiMo-V2-Flash", published())
    assert shape.windows.count(129) == 39 and shape.windows.count(None) == 9
    assert shape.kv_bytes_per_token == 2 * (192 + 128) * (9 * 4 + 39 * 8) == 222_720
    attention = sum(4096 * (64 * (192 + 128) + heads * (192 + 128)) for heads in [4] * 9 + [8] * 39)
    experts = 47 * (256 * 3 * 4096 * 2048 + 256 * 4096)
    rest = 3 * 4096 * 16_384 + 2 * 152_576 * 4096 + 48 * 2 * 4096
    assert shape.num_params == attention + experts + rest  # 309 billion; the last norm is nobody's
    assert shape.flops_per_pair == 2 * 48 * 64 * (192 + 128)
    assert shape.kv_copies(8) == 2


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("swa_head_dim", 128, "swa_head_dim must be 192, as in layers without a window"),
        ("swa_v_head_dim", 64, "swa_v_head_dim must be 128"),
        ("swa_num_attention_heads", 32, "swa_num_attention_heads must be 64"),
        ("swa_num_key_value_heads", 7, "swa_num_key_value_heads must be a divisor of 64 heads"),
        ("hybrid_layer_pattern", [0, 1], "hybrid_layer_pattern must be 0 or 1 for each of 48"),
        ("hybrid_layer_pattern", [[]] * 48, "hybrid_layer_pattern must be 0 or 1 for each of 48"),
        ("num_hidden_layers", 2**30, "num_hidden_layers must be at most 10,000"),
    ],
)
def test_what_is_wrong_is_named(name: str, value: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        shape_of("", published(**{name: value}))


def test_its_makers_words_say_the_same(model_dir: ModelDir, tmp_path: Path) -> None:
    own = model_dir(FAMILY)
    other = in_its_makers_words(own, tmp_path / "other")
    first, second = (
        PagedHarness(load_model(one)).prefill(TEXTS, 7) for one in (own, other)
    )  # fmt: skip
    assert all(map(torch.equal, first, second))
    assert read_shape(own).kv_bytes_per_token == read_shape(other).kv_bytes_per_token


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias must be False"),
        ({"attention_value_scale": "1"}, "attention_value_scale must be float"),
    ],
)
def test_what_is_not_computed_is_refused(
    fields: dict[str, Any], message: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    directory = in_its_makers_words(model_dir(FAMILY), tmp_path / "other")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **fields}))
    with pytest.raises(ModelError, match=message):
        load_model(directory)


def test_without_a_scale_of_values(tmp_path: Path) -> None:
    directory = make_model(FAMILY, tmp_path, attention_value_scale=None)
    found = PagedHarness(load_model(directory)).prefill(TEXTS, 7)
    for text, logits in zip(TEXTS, found, strict=True):
        assert (logits - hf_logits(directory, text)).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["auto", "int8", "int4"])
def test_a_token_takes_what_is_planned_for_it(kind: str, tmp_path: Path) -> None:
    """Two KV groups of one memory, whose rows are of two sizes; and texts are the same in chunks,
    with hits, and in little memory.
    """
    directory = make_model(FAMILY, tmp_path, head_dim=96, v_head_dim=64)
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, logprobs=1)
    options: dict[str, Any] = {
        "block_size": 4, "max_model_len": 96, "kv_cache_memory_bytes": "1MiB", "threads": 1,
        "kv_cache_dtype": kind, "dtype": "float32",
    }  # fmt: skip
    plain = LLM(directory, **options)
    size = {"auto": 4 * 160, "int8": 160 + 8, "int4": 80 + 8}[kind]
    assert plain.capacity.kv_bytes_per_token == (1 + 2 + 1) * size
    expected = plain.generate(TEXTS, params, use_tqdm=False)
    little = {**options, "kv_cache_memory_bytes": 80 * plain.capacity.kv_bytes_per_token}
    for more in (options, {**little, "max_num_batched_tokens": 7, "swap_space": 0.001}):
        llm = LLM(directory, **more)
        tight = more is not options
        for _ in range(2):
            found = llm.generate(TEXTS, params, use_tqdm=False)
            for one, other in zip(found, expected, strict=True):
                assert one.outputs[0].token_ids == other.outputs[0].token_ids
                assert one.outputs[0].logprobs == other.outputs[0].logprobs
        assert (llm.engine.scheduler.stats.num_preemptions > 0) == tight
