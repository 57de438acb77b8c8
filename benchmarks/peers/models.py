"""Models of real shapes with random weights: what they say is noise, their speed is not."""

from __future__ import annotations

import json
import sysconfig
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.peers.cache import Cache, PeerError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_FILES, _WORDS = 200, 8192  # of the tokenizer: what it is trained on, and how much it knows
_SEED = 0
_MADE = "1"  # changes with what is made here
_DEVIATION = 0.02  # of weights that are drawn here, not by transformers
_FILE_BYTES = 1 << 30  # of a file of such weights


class Shape(NamedTuple):
    """A config of transformers: its class, and its fields."""

    config: str
    fields: Mapping[str, Any]
    large: bool = False  # drawn one matrix after the other, of four bits as they are stored
    four_bits_alone: bool = False  # not made in 16, which would fill memory and disk

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
    "llama-1b": Shape(  # Llama 3.2's
        "LlamaConfig",
        {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
        },
        large=True,
    ),
    "qwen3-4b": Shape(
        "Qwen3Config",
        {
            "vocab_size": 151936,
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 8192,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
        },
        large=True,
    ),
    "llama-8b": Shape(  # Llama 3.1's
        "LlamaConfig",
        {
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
            "rope_theta": 500000.0,
            "tie_word_embeddings": False,
        },
        large=True,
        four_bits_alone=True,
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


def shape_of(name: str) -> Shape:
    """One of ``SHAPES``, or what the config in a model's directory says."""
    if name in SHAPES:
        return SHAPES[name]
    config = json.loads(Path(name, "config.json").read_text(encoding="utf-8"))
    return Shape(config["model_type"], config)


def folder_of(name: str) -> str:
    """Where a shape's model and what is converted of it lie in the cache."""
    if name in SHAPES:
        return f"models/{name}"
    path = Path(name).resolve()
    return f"models/{path.name}-{zlib.crc32(str(path).encode()):08x}"


def directory_of(cache: Cache, name: str) -> Path:
    """A model's directory as Hugging Face's libraries save it; a shape's is in bfloat16."""
    if name not in SHAPES:
        return Path(name).resolve()
    shape = SHAPES[name]
    if shape.four_bits_alone:
        raise PeerError(f"{name} is made in four bits alone: name a form of GGUF")
    save = _save_drawn if shape.large else save_random
    return cache.once(
        f"{folder_of(name)}/hf", f"{_told(shape)} {_MADE}", lambda path: save(shape, path)
    )


def description_of(cache: Cache, name: str) -> Path:
    """The directory of a shape's config and tokenizer, without weights."""

    def describe(path: Path) -> None:
        path.mkdir()
        _tokenizer(path)
        _config(SHAPES[name]).save_pretrained(path)

    inputs = f"{_told(SHAPES[name])} {_MADE}"
    return cache.once(f"{folder_of(name)}/config", inputs, describe)


def _told(shape: Shape) -> str:
    return f"Shape(config={shape.config!r}, fields={shape.fields!r})"


def _config(shape: Shape) -> PretrainedConfig:
    import transformers

    known: PretrainedConfig = getattr(transformers, shape.config)(**_COMMON, **shape.fields)
    if shape.large:
        causal = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(known)]
        known.architectures, known.dtype = [causal.__name__], "bfloat16"
    return known


def save_random(shape: Shape, path: Path) -> None:
    """Save a model of the shape, and a tokenizer, into a new directory."""
    import torch
    import transformers

    path.mkdir()
    _tokenizer(path)
    torch.manual_seed(_SEED)
    model = transformers.AutoModelForCausalLM.from_config(_config(shape)).to(torch.bfloat16)
    model.save_pretrained(path)


def _save_drawn(shape: Shape, path: Path) -> None:
    """The same where a whole model would fill memory: a file after the other."""
    import torch
    import transformers
    from safetensors.torch import save_file

    path.mkdir()
    _tokenizer(path)
    config = _config(shape)
    config.save_pretrained(path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    tied = ("lm_head.weight",) if config.tie_word_embeddings else ()
    left = {name: one.shape for name, one in model.state_dict().items() if name not in tied}
    torch.manual_seed(_SEED)
    where: dict[str, str] = {}
    while left:
        file, tensors, size = f"model-{len({*where.values()}) + 1:05d}.safetensors", {}, 0
        while left and size < _FILE_BYTES:
            name, numbers = next(iter(left)), left.pop(next(iter(left)))
            values = torch.empty(numbers, dtype=torch.bfloat16)
            tensors[name] = values.fill_(1) if len(numbers) == 1 else values.normal_(0, _DEVIATION)
            size, where[name] = size + values.nbytes, file
        save_file(tensors, path / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": where}
    (path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


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
