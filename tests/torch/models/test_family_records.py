"""Older and wider spellings of a family's config and tensors, and what of them is not computed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from quire.core.errors import ConfigError, ModelError
from quire.models.decoder import DecoderModel
from quire.models.loader import check_servable, load_model
from quire.models.shape import read_shape
from quire.models.streaming import Streaming
from quire.models.transformers_model import TransformersModel
from support.hf_reference import hf_logits, random_prompts
from support.paged_harness import PagedHarness
from support.rounded_checkpoints import Tensors, rewritten
from support.small_models import CONFIGS

ModelDir = Callable[[str], Path]

CHUNK = 7


def change_config(directory: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    return directory


def changed(source: Path, target: Path, **fields: Any) -> Path:
    """The same model with other fields in its config; those that are ``...`` are left out."""

    def change(config: dict[str, Any]) -> None:
        config.update(fields)
        for name in [name for name, value in fields.items() if value is ...]:
            del config[name]

    return change_config(rewritten(source, target, lambda name, tensor: {name: tensor}), change)


def logits(directory: Path, **options: Any) -> Tensor:
    model = load_model(directory, **options)
    assert isinstance(model, DecoderModel)
    return torch.cat(PagedHarness(model).prefill(random_prompts(5, 30), CHUNK))


@pytest.mark.parametrize("root", ["language_model.model.", "model.language_model."])
def test_the_text_of_a_model_that_sees_images(
    root: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    def beside_images(name: str, tensor: Tensor) -> Tensors:
        renamed = name.replace("model.", root, 1)
        tower = "vision_tower.x" if root.startswith("language") else "model.vision_tower.x"
        return {
            renamed: tensor,
            **({tower: tensor.clone()} if "final" in name or "norm" in name else {}),
        }

    def nest(config: dict[str, Any]) -> None:
        text = dict(config)
        config.clear()
        config["architectures"] = ["Gemma3ForConditionalGeneration"]
        config.update(model_type="gemma3", text_config=text, eos_token_id=1, dtype="float32")

    directory = change_config(
        rewritten(model_dir("gemma3"), tmp_path / "images", beside_images), nest
    )
    assert torch.equal(logits(directory), logits(model_dir("gemma3")))
    assert check_servable(directory) == "Quire"


def test_a_class_with_other_capitals(model_dir: ModelDir, tmp_path: Path) -> None:
    directory = changed(
        model_dir("phimoe"), tmp_path / "theirs", architectures=["PhiMoEForCausalLM"]
    )
    assert check_servable(directory) == "Quire"
    assert torch.equal(logits(directory), logits(model_dir("phimoe")))


def test_a_rotation_for_each_kind_of_layer_in_older_words(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    directory = changed(
        model_dir("gemma3"),
        tmp_path / "older",
        rope_parameters=...,
        layer_types=...,
        rope_scaling={"rope_type": "linear", "factor": 4.0},
        rope_theta=5e4,
        rope_local_base_freq=1e3,
        sliding_window_pattern=2,
    )
    assert torch.equal(logits(directory), logits(model_dir("gemma3")))


def test_gpt_neox_as_it_was_published(model_dir: ModelDir, tmp_path: Path) -> None:
    def older(name: str, tensor: Tensor) -> Tensors:
        if name == "lm_head.weight":
            return {"embed_out.weight": tensor}
        layer = name.partition(".attention.query_key_value.bias")
        masks = {f"{layer[0]}.attention.bias": torch.ones(1, 1, 4, 4)} if layer[1] else {}
        return {name: tensor, **masks}

    directory = change_config(
        rewritten(model_dir("gpt_neox"), tmp_path / "older", older),
        lambda config: config.update(rope_parameters=None, rotary_pct=0.5, rotary_emb_base=1e4),
    )
    assert torch.equal(logits(directory), logits(model_dir("gpt_neox")))


def test_layers_that_guess_further_tokens_are_not_read(model_dir: ModelDir, tmp_path: Path) -> None:
    def with_one_more(name: str, tensor: Tensor) -> Tensors:
        further = name.replace("layers.2.", "layers.3.")
        return {name: tensor} if further == name else {name: tensor, further: tensor.clone()}

    source = rewritten(model_dir("glm4_moe"), tmp_path / "source", with_one_more)
    directory = changed(source, tmp_path / "guessing", num_nextn_predict_layers=1)
    assert torch.equal(logits(directory), logits(model_dir("glm4_moe")))


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("glm4_moe", "scoring_func", "softmax"),
        ("dots1", "topk_method", "greedy"),
        ("minimax_m2", "use_routing_bias", False),
        ("glm4_moe-groups", "n_group", 3),
        ("glm4_moe-groups", "topk_group", 1),  # two experts are not three
    ],
)
def test_routers_that_are_not_computed(
    family: str, field: str, value: Any, model_dir: ModelDir, tmp_path: Path
) -> None:
    directory = changed(model_dir(family), tmp_path / "changed", **{field: value})
    with pytest.raises(ModelError, match=field):
        load_model(directory)


@pytest.mark.parametrize("pattern", [1, 2])
def test_layers_without_experts_are_not_counted_among_those_that_see_everything(
    pattern: int, model_dir: ModelDir, tmp_path: Path
) -> None:
    """Where no list says which do; they have a rule of their own."""
    family = "cohere2_moe" if pattern == 1 else "cohere2_moe-sigmoid"
    told = {"first_k_dense_replace": 1, "layer_types": ..., "mlp_layer_types": ...}
    directory = changed(model_dir(family), tmp_path / "changed", **told)
    text = random_prompts(30)
    found = PagedHarness(load_model(directory)).prefill(text, 7)[0]
    assert (found - hf_logits(directory, text[0])).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("gemma2", {"final_logit_softcapping": None}),
        ("gemma2", {"attn_logit_softcapping": None}),
        ("gemma", {"hidden_act": "gelu"}),  # which means the approximation
        ("cohere2", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("smollm3", {"no_rope_layers": [0, 1]}),
        ("falcon", {"num_ln_in_parallel_attn": None}),
    ],
)
def test_what_a_config_may_say(
    family: str, fields: dict[str, Any], model_dir: ModelDir, tmp_path: Path
) -> None:
    directory = changed(model_dir(family), tmp_path / "changed", **fields)
    expected = torch.cat([hf_logits(directory, text) for text in random_prompts(5, 30)])
    assert (logits(directory) - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("olmo", "clip_qkv", 0.5),
        ("cohere", "use_qk_norm", True),
        ("gemma", "use_bidirectional_attention", True),
        ("gemma3", "attn_logit_softcapping", 5.0),
    ],
)
def test_what_transformers_alone_computes(
    family: str, field: str, value: Any, model_dir: ModelDir, tmp_path: Path
) -> None:
    neutral = changed(model_dir(family), tmp_path / "neutral", **{field: None})
    assert check_servable(neutral) == "Quire"
    directory = changed(model_dir(family), tmp_path / "changed", **{field: value})
    assert check_servable(directory) == "transformers"
    if field != "use_qk_norm":  # whose tensors are not there
        assert isinstance(load_model(directory, quantization="int8"), TransformersModel)
    with pytest.raises(ConfigError, match=f"is for mixtures with .*, and .* with {field} has none"):
        load_model(directory, experts_path=tmp_path)


@pytest.mark.parametrize(("family", "field"), [("stablelm", "qk_layernorm"), ("falcon", "alibi")])
def test_what_nobody_computes_is_refused_before_weights_are_read(
    family: str,
    field: str,
    model_dir: ModelDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = changed(model_dir(family), tmp_path / "changed", **{field: True})
    monkeypatch.setattr("quire.models.weights.Weights.read", None)
    for refuse in (check_servable, load_model):
        with pytest.raises(ModelError, match="its attention does not go through"):
            refuse(directory)


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("gemma2", {"sliding_window": None}, "sliding_window is missing"),
        ("gemma3", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be above 0"),
        ("gemma3", {"final_logit_softcapping": -1.0}, "final_logit_softcapping must be above 0"),
        (
            "olmo3",
            {"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}},
            "rope_type is dynamic; supported: default, linear",
        ),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers must be 0 or 1 for each of 2 layers"),
        ("granite", {"logits_scaling": 0.0}, "logits_scaling and attention_multiplier must be"),
        ("gptj", {"rotary_dim": 64}, "rotary_dim must be at most 16"),
        ("falcon", {"num_kv_heads": 3}, "is not a multiple of"),
        ("granite", {"partial_rotary_factor": 0.5}, "no partial_rotary_factor other than 1"),
    ],
)
def test_what_cannot_be_is_refused_before_weights_are_read(
    family: str,
    fields: dict[str, Any],
    message: str,
    model_dir: ModelDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = changed(model_dir(family), tmp_path / "changed", **fields)
    monkeypatch.setattr("quire.models.weights.Weights.read", None)
    with pytest.raises(ModelError, match=message):
        load_model(directory)


def test_streaming_where_some_layers_know_no_positions(model_dir: ModelDir) -> None:
    whole, streamed = (
        logits(model_dir("smollm3"), streaming=streaming)
        for streaming in (None, Streaming(window=8, sinks=2))
    )
    assert torch.allclose(streamed[:5], whole[:5], atol=1e-4)
    assert not torch.allclose(streamed[-5:], whole[-5:], atol=1e-2)
    with pytest.raises(ConfigError, match="windows of its own"):
        load_model(model_dir("gemma3"), streaming=Streaming(8))


@pytest.mark.parametrize(
    ("fields", "heads"),
    [({}, 2), ({"new_decoder_architecture": False}, 1), ({"num_kv_heads": 4}, 4)],
)
def test_how_many_heads_a_falcon_has(
    fields: dict[str, Any], heads: int, model_dir: ModelDir, tmp_path: Path
) -> None:
    directory = changed(model_dir("falcon"), tmp_path / "changed", **fields)
    assert read_shape(directory / "config.json").num_kv_heads == heads


def test_the_newest_transformers_knows_all_small_models() -> None:
    """Where one is not known its tests are skipped, as a name that is wrong would be."""
    lock = (Path(__file__).parents[3] / "locks/dev.txt").read_text(encoding="utf-8")
    newest = max(re.findall(r"^transformers==(\d+)\.(\d+)", lock, re.MULTILINE), key=_numbers)
    if _numbers(transformers.__version__.split(".")[:2]) < _numbers(newest):
        pytest.skip("an older release knows fewer")
    assert [one for one, _ in CONFIGS.values() if not hasattr(transformers, one)] == []


def _numbers(parts: Sequence[str]) -> list[int]:
    return [int(part) for part in parts]
