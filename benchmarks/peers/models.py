"""Models of real shapes with random weights: what they say is noise, their speed is not."""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers.cache import Cache

_FILES, _WORDS = 200, 8192  # of the tokenizer: what it is trained on, and how much it knows
_SEED = 0
_MADE = "1"  # changes with what is made here


class Shape(NamedTuple):
    """A config of transformers: its class, and its fields."""

    config: str
    fields: Mapping[str, Any]

    @property
    def max_model_len(self) -> int:
        longest: int = self.fields["max_position_embeddings"]
        return longest


_COMMON = {"bos_token_id": 0, "eos_token_id": 1}
SHAPES: Mapping[str, Shape] = {
    "tiny": Shape(
        "LlamaConfig",
        {
            "vocab_size": _WORDS,
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": True,
        },
    ),
    "smollm-135m": Shape(
        "LlamaConfig",
        {
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "max_position_embeddings": 8192,
            "rope_theta": 100000.0,
            "tie_word_embeddings": True,
        },
    ),
    "qwen2-0.5b": Shape(
        "Qwen2Config",
        {
            "vocab_size": 151936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3-moe-1.2b": Shape(
        "Qwen3MoeConfig",
        {
            "vocab_size": 49152,
            "hidden_size": 1024,
            "intermediate_size": 2048,
            "moe_intermediate_size": 512,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "num_hidden_layers": 12,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "max_position_embeddings": 8192,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3.5-0.8b": Shape(
        "Qwen3_5TextConfig",
        {
            "vocab_size": 248320,
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
        },
    ),
    "gemma4-0.6b": Shape(  # Gemma 4 E2B's layers, fewer of them, with fewer words
        "Gemma4TextConfig",
        {
            "vocab_size": 32768,
            "vocab_size_per_layer_input": 32768,
            "hidden_size": 1536,
            "hidden_size_per_layer_input": 256,
            "intermediate_size": 6144,
            "use_double_wide_mlp": True,
            "num_hidden_layers": 10,
            "num_kv_shared_layers": 5,
            "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2,
            "sliding_window": 512,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "global_head_dim": 512,
            "final_logit_softcapping": 30.0,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
    ),
    "opt-125m": Shape(
        "OPTConfig",
        {
            "vocab_size": 50272,
            "hidden_size": 768,
            "ffn_dim": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 2048,
            "word_embed_proj_dim": 768,
            "pad_token_id": 1,
        },
    ),
}


def folder_of(shape: str) -> str:
    """Where a shape's model and what is converted of it lie in the cache."""
    return f"models/{shape}"


def random_model(cache: Cache, shape: str) -> Path:
    """A model's directory as Hugging Face's libraries save it, in bfloat16."""
    name = f"{folder_of(shape)}/hf"
    return cache.once(
        name, f"{SHAPES[shape]} {_MADE}", lambda path: save_random(SHAPES[shape], path)
    )


def save_random(shape: Shape, path: Path) -> None:
    """Save a model of the shape, and a tokenizer, into a new directory."""
    import torch
    import transformers

    path.mkdir()
    _tokenizer(path)
    torch.manual_seed(_SEED)
    config = getattr(transformers, shape.config)(**_COMMON, **shape.fields)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(path)


def _tokenizer(path: Path) -> None:
    """Of bytes and pairs, trained on Python's own library: every server wants to load one."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:_FILES]
    pairs = ByteLevelBPETokenizer()
    pairs.train([str(one) for one in sources], vocab_size=_WORDS, special_tokens=["<s>", "</s>"])
    file = path / "tokenizer.json"
    pairs.save(str(file))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file), bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(path)
