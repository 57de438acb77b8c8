"""Models by their shapes: what a token's keys and values take, and what computing one costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "int8": 1}
"""Bytes of a number, by dtype."""

_SCALE_BYTES = 4  # of each key and value of a head, where the cache's numbers have 8 bits


@dataclass(frozen=True)
class ModelShape:
    """A decoder's shape. All that memory and time depend on is derived from it."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    gated_mlp: bool = True  # three matrices (SwiGLU) rather than two
    tied_embeddings: bool = False
    learned_positions: bool = False
    biases: bool = False
    dtype: str = "float16"  # of weights, and of the KV cache if kv_dtype is None
    kv_dtype: str | None = None

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers, and their scales if they have 8 bits."""
        size = BYTES[self.kv_dtype or self.dtype]
        vector = self.head_size * size + (_SCALE_BYTES if size == 1 else 0)
        return 2 * self.num_layers * self.num_kv_heads * vector

    @property
    def layer_params(self) -> int:
        """Parameters of one layer's matrices, norms and biases."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        attention = hidden * (queries + 2 * keys) + queries * hidden
        mlp = (3 if self.gated_mlp else 2) * hidden * inner
        norms = 2 * hidden
        if self.biases:  # and layer norms have biases then
            norms *= 2
            attention += queries + 2 * keys + hidden
            mlp += inner + hidden
        return attention + mlp + norms

    @property
    def num_params(self) -> int:
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        positions = self.max_positions * self.hidden_size if self.learned_positions else 0
        return self.num_layers * self.layer_params + embeddings + positions

    @property
    def weight_bytes(self) -> int:
        return self.num_params * BYTES[self.dtype]

    @property
    def flops_per_token(self) -> int:
        """Of the layers' matrices: a multiplication and an addition for each parameter."""
        return 2 * self.num_layers * self.layer_params

    @property
    def flops_per_sample(self) -> int:
        """Of the LM head."""
        return 2 * self.vocab_size * self.hidden_size

    @property
    def flops_per_pair(self) -> int:
        """Of attention, for a token and one that it sees: query times key, weight times value."""
        return 4 * self.num_layers * self.num_heads * self.head_size


def _opt(name: str, layers: int, hidden: int, heads: int) -> ModelShape:
    return ModelShape(
        name, layers, hidden, heads, heads, hidden // heads, 4 * hidden, 50272, 2048,
        gated_mlp=False, tied_embeddings=True, learned_positions=True, biases=True,
    )  # fmt: skip


def _llama(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, inner: int, vocab: int,
    positions: int, dtype: str = "float16", tied: bool = False,
) -> ModelShape:  # fmt: skip
    return ModelShape(
        name, layers, hidden, heads, kv_heads, hidden // heads, inner, vocab, positions,
        tied_embeddings=tied, dtype=dtype,
    )  # fmt: skip


MODELS: Mapping[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _opt("opt-125m", 12, 768, 12),
        _opt("opt-13b", 40, 5120, 40),
        _opt("opt-66b", 64, 9216, 72),
        _opt("opt-175b", 96, 12288, 96),
        ModelShape(
            "gpt-32x32x128", 32, 4096, 32, 32, 128, 16384, 50257, 4096,
            gated_mlp=False, tied_embeddings=True, learned_positions=True, biases=True,
        ),
        _llama("llama-7b", 32, 4096, 32, 32, 11008, 32000, 2048),
        _llama("llama-13b", 40, 5120, 40, 40, 13824, 32000, 2048),
        _llama("llama-2-7b", 32, 4096, 32, 32, 11008, 32000, 4096),
        _llama("llama-2-13b", 40, 5120, 40, 40, 13824, 32000, 4096),
        _llama("llama-3-8b", 32, 4096, 32, 8, 14336, 128256, 8192, "bfloat16"),
        _llama("llama-3-70b", 80, 8192, 64, 8, 28672, 128256, 8192, "bfloat16"),
        _llama("qwen2.5-0.5b", 24, 896, 14, 2, 4864, 151936, 32768, "bfloat16", tied=True),
        _llama("qwen2.5-1.5b", 28, 1536, 12, 2, 8960, 151936, 32768, "bfloat16", tied=True),
        _llama("qwen2.5-3b", 36, 2048, 16, 2, 11008, 151936, 32768, "bfloat16", tied=True),
        _llama("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, 32768, "bfloat16"),
        _llama("qwen2.5-14b", 48, 5120, 40, 8, 13824, 152064, 32768, "bfloat16"),
        _llama("qwen2.5-32b", 64, 5120, 40, 8, 27648, 152064, 32768, "bfloat16"),
        _llama("qwen2.5-72b", 80, 8192, 64, 8, 29568, 152064, 32768, "bfloat16"),
    )
}  # fmt: skip
