"""Convert a model with llama.cpp's own script, whatever its tokenizer.

    python -m benchmarks.peers.runners.gguf LLAMA_CPP MODEL OUT.gguf [--drawn]

The script refuses tokenizers that it does not know. Ours is a byte-level one, and every prompt is
of token ids: how text would be split into words does not matter. With ``--drawn`` the directory
has a config without weights: blocks of Q4_K_M are drawn as they are stored, which takes seconds
where rounding a model of 16 bits takes its memory, twice its disk and minutes.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

_SEED = 0
_BLOCK = 256  # weights
_LAID_OUT = {"Q4_K": (144, 0), "Q6_K": (210, 208)}
"""Bytes of a block, and where its scale of 16 bits is; Q4_K's is followed by that of its least."""
_SCALES = {"Q4_K": (1.1e-4, 8.2e-4), "Q6_K": (1.5e-5,)}
"""With which the rest may be any bytes: weights have no mean, and deviate by 0.02."""


def main() -> None:
    sources, model, out = sys.argv[1:4]
    sys.path[:0] = [sources, f"{sources}/gguf-py"]
    script = importlib.import_module("convert_hf_to_gguf")
    base = importlib.import_module("conversion.base")
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    gemma = importlib.import_module("conversion.gemma")
    gemma.Gemma4Model.set_vocab = base.TextModel._set_vocab_gpt2
    config = json.loads(Path(model, "config.json").read_text(encoding="utf-8"))
    # It takes it for granted that they come with layers that guess further tokens.
    flags = ["--no-mtp"] if config["model_type"].startswith("qwen3_5") else []
    if "--drawn" in sys.argv:
        _draw_instead(base, model)
    sys.argv = ["convert_hf_to_gguf.py", model, "--outtype", "bf16", "--outfile", out, *flags]
    script.main()


def _draw_instead(base: Any, model: str) -> None:
    """Let the script find tensors that are drawn when they are written."""
    gguf = base.gguf
    rng = np.random.default_rng(_SEED)

    def tensor(shape: tuple[int, ...]) -> Any:
        """Ones where its values are asked for, as norms' are."""
        lazy, torch = base.LazyTorchTensor, base.torch
        meta = lazy.meta_with_dtype_and_shape(torch.float32, shape)
        return lazy(meta=meta, args=(shape,), func=torch.ones)

    def names(self: Any, remote_hf_model_id: str | None = None) -> dict[str, Callable[[], Any]]:
        return {name: partial(tensor, shape) for name, shape in _shapes(model).items()}

    def form(self: Any, name: str, new_name: str, bid: int | None, n_dims: int) -> Any:
        tied = "lm_head.weight" not in self.model_tensors
        return gguf.GGMLQuantizationType[form_of(new_name, bid, self.block_count, tied)]

    plain = gguf.quants.quantize

    def quantize(values: Any, form: Any) -> Any:
        if form.name not in _LAID_OUT:
            return plain(values, form)
        bytes_of_row = values.shape[-1] // _BLOCK * _LAID_OUT[form.name][0]
        shape = (*values.shape[:-1], bytes_of_row)
        return gguf.LazyNumpyTensor(
            meta=gguf.LazyNumpyTensor.meta_with_dtype_and_shape(np.uint8, shape),
            args=(form.name, shape),
            func=lambda form, shape: blocks(rng, form, shape),
        )

    add_file_type = gguf.GGUFWriter.add_file_type
    base.ModelBase.index_tensors = names
    base.ModelBase.tensor_force_quant = form
    gguf.quants.quantize = quantize
    gguf.GGUFWriter.add_file_type = lambda self, _: add_file_type(
        self, gguf.LlamaFileType.MOSTLY_Q4_K_M
    )


def _shapes(model: str) -> dict[str, tuple[int, ...]]:
    """Of the tensors that a model of the config has."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model)
    with torch.device("meta"):
        tensors = AutoModelForCausalLM.from_config(config).state_dict()
    if config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return {name: tuple(one.shape) for name, one in tensors.items()}


def form_of(name: str, layer: int | None, layers: int, tied: bool) -> str:
    """What llama.cpp keeps a matrix of a dense decoder in, in a file of Q4_K_M."""
    if name == ("token_embd.weight" if tied else "output.weight"):
        return "Q6_K"
    if layer is None or not name.endswith(("attn_v.weight", "ffn_down.weight")):
        return "Q4_K"
    eighth = layers // 8
    outer = layer < eighth or layer >= 7 * layers // 8
    return "Q6_K" if outer or (layer - eighth) % 3 == 2 else "Q4_K"


def blocks(rng: np.random.Generator, form: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Rows of blocks with random bytes, and scales that make weights of them."""
    size, scale = _LAID_OUT[form]
    drawn = np.frombuffer(rng.bytes(int(np.prod(shape))), np.uint8).reshape(-1, size).copy()
    scales = np.array(_SCALES[form], np.float16).view(np.uint8)
    drawn[:, scale : scale + len(scales)] = scales
    rows: np.ndarray[Any, Any] = drawn.reshape(shape)
    return rows


if __name__ == "__main__":
    main()
