"""Architectures without code of ours: computed rightly through transformers, or refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from quire.core.errors import ConfigError, ModelError
from quire.models import loader, transformers_model
from quire.models.loader import load_model
from quire.models.transformers_model import TransformersModel
from support.paged_harness import PagedHarness
from support.small_models import SMALL_LLAMA, VOCAB_SIZE, save_model

EXPERTS = {
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}

# Architecture: fields beyond those of a small Llama.
RIGHT: dict[str, dict[str, Any]] = {
    "Cohere2": {"sliding_window": 12, "logit_scale": 0.3},
    "DeepseekV3": {**EXPERTS, **LATENT},  # values narrower than keys
    "GPT2": {"n_inner": 96},
    "GPTBigCode": {"multi_query": True, "n_inner": 96},
    "Gemma3Text": {"head_dim": 24, "sliding_window": 12, "num_hidden_layers": 7},
    "GptOss": {"num_local_experts": 4, "head_dim": 16, "sliding_window": 12},  # with sinks
    "Granite": {"logits_scaling": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.5},
    "Mixtral": {**EXPERTS, "sliding_window": 12},
    "Olmo2": {},
    "Phi": {"partial_rotary_factor": 0.5},
    "Qwen2Moe": {**EXPERTS, "shared_expert_intermediate_size": 32},
    "SmolLM3": {"num_hidden_layers": 4},  # one layer in four without rotation
    "Starcoder2": {"sliding_window": 12},
}

DECODER = {"d_model": 64, "decoder_attention_heads": 4, "decoder_ffn_dim": 96}

CONVOLUTIONS = {"layer_types": ["conv", "full_attention"]}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Bert": ({"is_decoder": False}, "neither causal nor a sliding window"),
    "Bart": ({**DECODER, "decoder_layers": 2}, "its head looks into its decoder, for decoder"),
    "Bloom": ({"n_head": 4}, "attention interface"),  # ALiBi
    "Lfm2": (CONVOLUTIONS, "lfm2 has layers that keep a state of a kind that is not .*: conv"),
    "Doge": ({}, r"other attention .*; its config has windows \(keep_window_size\)"),
    "Nemotron": ({}, "keyword arguments"),
    "StableLm": ({}, "keyword arguments"),
}


@pytest.fixture(autouse=True)
def nothing_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what has code of its own here is computed by transformers as well."""
    monkeypatch.setattr(loader, "_NATIVE", {})


def make(architecture: str, fields: dict[str, Any], directory: Path) -> Path:
    config = getattr(transformers, f"{architecture}Config")
    return save_model(config(**{**SMALL_LLAMA, "pad_token_id": 2, **fields}), directory)


@pytest.mark.parametrize("architecture", RIGHT)
def test_logits(architecture: str, tmp_path: Path) -> None:
    directory = make(architecture, RIGHT[architecture], tmp_path)
    model = load_model(directory)
    assert isinstance(model, TransformersModel)
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(3, VOCAB_SIZE, (n,), generator=generator) for n in (1, 19, 30)]
    found = PagedHarness(model).prefill([text.tolist() for text in texts], chunk=7)
    own = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    with torch.inference_mode():
        for text, logits in zip(texts, found, strict=True):
            expected = own.eval()(text[None], use_cache=False).logits[0]
            assert (logits - expected).abs().max() < 1e-4


@pytest.mark.skipif(sys.platform != "linux", reason="others do not tell what is mapped")
@pytest.mark.parametrize("architecture", ["Cohere2", "GPTBigCode"])
def test_weights_are_no_pages_of_files_which_count_as_free(
    architecture: str, tmp_path: Path
) -> None:
    model = load_model(make(architecture, RIGHT[architecture], tmp_path))
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(encoding="utf-8")
    assert model.weight_bytes


@pytest.mark.parametrize("architecture", REFUSED)
def test_what_paged_attention_cannot_do_is_refused(architecture: str, tmp_path: Path) -> None:
    fields, reason = REFUSED[architecture]
    directory = make(architecture, fields, tmp_path)
    with pytest.raises(ModelError, match=reason):
        load_model(directory)


def test_other_logits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of layers that nothing names."""
    monkeypatch.setattr(loader, "check_without_states", lambda fields: None)
    monkeypatch.setattr(transformers_model, "check_kinds", lambda *_: None)
    with pytest.raises(ModelError, match="differ from its own"):
        load_model(make("Lfm2", CONVOLUTIONS, tmp_path))


COMPRESSED = {
    "head_dim": 16, "q_lora_rank": 32, "o_lora_rank": 16, "o_groups": 2, "qk_rope_head_dim": 8,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
SPARSE = {"layer_types": ["full_attention", "minimax_m3_sparse"], "head_dim": 16}


@pytest.mark.parametrize(
    ("architecture", "fields", "kind"),
    [
        ("DeepseekV4", COMPRESSED, "heavily_compressed_attention"),  # beyond 128 tokens
        ("MiniMaxM3VLText", SPARSE, "minimax_m3_sparse"),  # beyond 2,048
    ],
)
def test_what_only_long_texts_would_show_is_refused(
    architecture: str, fields: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    """The check at load is of short ones."""
    if not hasattr(transformers, f"{architecture}Config"):
        pytest.skip("this release of transformers does not have it")
    with pytest.raises(ModelError, match=f"of a kind that is not computed here: {kind}"):
        load_model(make(architecture, fields, tmp_path))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_self_check_allows_for_rounding(dtype: str, tmp_path: Path) -> None:
    model = load_model(make("Olmo2", {"num_hidden_layers": 16}, tmp_path), dtype=dtype)
    assert model.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("architecture", ["Dots1", "SolarOpen"])
def test_experts_that_are_nearly_as_likely(architecture: str, tmp_path: Path) -> None:
    """Paged attention rounds differently, and other experts are chosen: nothing is wrong."""
    routed = {"n_routed_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 32}
    groups = {"n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0}
    layers = {"num_hidden_layers": 12, "max_window_layers": 12}
    fields = {**routed, **groups, **layers, "layer_types": ["full_attention"] * 12}
    model = load_model(make(architecture, fields, tmp_path), dtype="bfloat16")
    assert isinstance(model, TransformersModel)


def test_windows_are_found_beyond_the_length_of_the_probe(tmp_path: Path) -> None:
    fields = {"sliding_window": 100, "num_hidden_layers": 7, "head_dim": 16}
    model = load_model(make("Gemma3Text", fields, tmp_path))
    windows = [spec.window for spec in model._specs]  # type: ignore[attr-defined]
    assert windows == [100] * 5 + [None, 100]


def test_stretched_rotations_end_at_the_original_length(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 32, **factors}
    fields = {**EXPERTS, "rope_parameters": {**rope, "short_mscale": 1.0, "long_mscale": 1.0}}
    directory = make("Phimoe", fields, tmp_path)
    assert load_model(directory).max_positions == 32
    with pytest.raises(ConfigError, match="max_model_len is 64; this model allows 1 to 32"):
        load_model(directory, max_model_len=64)


def test_missing_tensors_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = make("Olmo2", {}, tmp_path) / "model.safetensors"
    tensors = load_file(path)
    tensors["extra"] = tensors.pop("model.norm.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"missing tensors: model\.norm\.weight"):
        load_model(tmp_path)
