"""Models that are known by name, by their published shapes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from quire.errors import ModelError
from quire.shape import ModelShape, read_shape


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


def find_model(name: str) -> ModelShape:
    """A model of the catalogue, or the one that a directory, config.json or GGUF file describes.

    Raises:
        ModelError: there is neither, or the config lacks what a shape needs.
    """
    if name.lower() in MODELS:
        return MODELS[name.lower()]
    path = Path(name)
    if path.exists():
        return read_shape(path)
    close = difflib.get_close_matches(name.lower(), MODELS, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ModelError(
        f"model {name!r} is neither in the catalogue nor a config.json or GGUF file; {hint}"
        f"known: {', '.join(MODELS)}"
    )
