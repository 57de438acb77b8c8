"""Of every decoder that transformers has: its shape is right, or it is refused. None is wrong."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quire.core.errors import ModelError
from quire.models.shape import ModelShape, read_shape

_BESIDE = re.compile(r"vision|audio|speech|whisper")
_OF_TEXTS = re.compile(r"language_model|text_model|^lm_head")
"""Of models that see too, what their decoders' parameters are called."""

SIMULATED = {
    "bloom", "cohere", "cohere2", "deepseek_v3", "ernie4_5_moe", "falcon", "gemma", "gemma2",
    "gemma3_text", "gemma3n_text", "gemma4_text", "glm4_moe", "glm4_moe_lite", "gpt2", "gpt_neox",
    "gpt_oss", "gptj", "granite", "granitemoe", "granitemoeshared", "llama", "llama4_text",
    "minimax_m2", "mixtral", "olmo", "olmo2", "olmo3", "olmoe", "opt", "phi", "phi3", "phimoe",
    "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "stablelm", "starcoder2", "bamba",
    "falcon_h1", "granitemoehybrid", "kimi_linear", "lfm2", "mamba2", "nemotron_h",
    "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "afmoe", "exaone_moe", "gemma4_unified_text",
    "granite_swa", "hy_v3", "jais2", "lfm3", "mellum", "deepseek_v32", "glm_moe_dsa",
    "cohere2_moe", "mimo_v2_flash", "exaone", "internlm3", "iquestcoder", "sarvam_mla",
    "sarvam_moe",
}  # fmt: skip


def shape_of(kind: str, directory: Path) -> ModelShape | None:
    """By the config as transformers writes it; None if it is refused."""
    try:
        config = CONFIG_MAPPING[kind]()
    except Exception:  # there is none without arguments
        return None
    config.save_pretrained(directory)
    with contextlib.suppress(ModelError):
        return read_shape(directory / "config.json")
    return None


@pytest.mark.filterwarnings("ignore")
def test_no_decoder_of_transformers_is_taken_for_another(tmp_path: Path) -> None:
    found, windowed = set(), set()
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        shape = shape_of(kind, tmp_path)
        if shape is None:
            continue
        try:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind]())
        # Its own defaults make no model, as Ministral's without a head_dim; or what sees in it is
        # of a package that is not here.
        except (ImportError, TypeError):
            continue
        found.add(json.loads((tmp_path / "config.json").read_text())["model_type"])
        named = dict(model.named_parameters())
        if any("texts only" in note for note in shape.notes) and any(map(_BESIDE.search, named)):
            named = {name: one for name, one in named.items() if _OF_TEXTS.search(name)}
        count = sum(parameter.numel() for parameter in named.values())
        assert shape.num_params == pytest.approx(count, rel=2e-3), kind
        text = model.config.get_text_config()
        window = getattr(text, "sliding_window", None)
        same = window is not None and window < shape.max_positions  # or no text outgrows it
        kinds = getattr(text, "layer_types", None)
        slides = [
            (same and one == "sliding_attention") or one == "chunked_attention"
            for one in kinds or ()
        ]
        seen = shape.windows or (None,) * shape.num_layers
        assert [window is not None for window in seen] == (slides or [same] * len(seen)), kind
        windowed |= {kind} if any(seen) else set()
    assert found >= SIMULATED
    assert windowed >= {"gemma2", "gemma3_text"}
