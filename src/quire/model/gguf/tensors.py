"""A GGUF file's tensors under the names that the families have for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quire.errors import ModelError
from quire.gguf import GGUFFile, TensorInfo, open_gguf
from quire.gguf.config import architecture_of
from quire.model.gguf.blocks import read_blocks
from quire.model.stored import ByGroups

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_IN_CONFIG = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OF_A_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class TensorSlice(NamedTuple):
    """What is known of a tensor before it is read, as safetensors tells it."""

    info: TensorInfo

    def get_shape(self) -> Sequence[int]:
        return self.info.shape

    def get_dtype(self) -> str:
        return self.info.type.name


class GGUFTensors:
    """As safetensors' handle of an open file, and what is rounded as it is.

    A tensor is read into memory of its own.
    """

    def __init__(self, path: Path) -> None:
        """ModelError: see ``open_gguf``; or the architecture is not supported."""
        self._file = open_gguf(path)
        self._architecture = architecture_of(self._file)
        self._stored = {
            _family_name(name, self._architecture.names): name
            for name in self._file.tensors
            if name not in _IN_CONFIG
        }

    def keys(self) -> list[str]:
        return list(self._stored)

    def get_slice(self, name: str) -> TensorSlice:
        return TensorSlice(self._info(name))

    def get_tensor(self, name: str) -> Tensor:
        """Its floats."""
        info = self._info(name)
        if info.type.is_rounded:
            return self.get_rounded(name).floats(torch.float32)
        tensor = self._bytes(info).view(_FLOATS[info.type.name]).view(info.shape)
        order = self._order(name, info.shape[0])
        return tensor if order is None else tensor[order]

    def get_rounded(self, name: str) -> ByGroups:
        """Its codes and what they mean."""
        info = self._info(name)
        rows = self._bytes(info).view(info.shape[0], -1)
        order = self._order(name, info.shape[0])
        return read_blocks(info.type, rows if order is None else rows[order])

    def _info(self, name: str) -> TensorInfo:
        return self._file.tensors[self._stored[name]]

    def _bytes(self, info: TensorInfo) -> Tensor:
        data = np.fromfile(self._file.path, np.uint8, info.num_bytes, offset=info.start)
        if len(data) != info.num_bytes:
            raise OSError("the file has become shorter")
        return torch.from_numpy(data)

    def _order(self, name: str, rows: int) -> Tensor | None:
        """Where the rows of queries and keys are; None: in their places.

        A head's two halves are rotated with each other; stored are pairs of neighbours.
        """
        stored = self._stored[name].split(".")
        if not self._architecture.interleaved or stored[-2] not in ("attn_q", "attn_k"):
            return None
        heads = _num_heads(self._file, stored[-2])
        if rows % (2 * heads):
            raise ModelError(
                f"{self._file.path}: {self._stored[name]} has no rows for {heads} heads"
            )
        return torch.arange(rows).view(heads, -1, 2).transpose(1, 2).flatten()


def _num_heads(file: GGUFFile, part: str) -> int:
    prefix = f"{file.metadata['general.architecture']}.attention.head_count"
    heads: Any = file.metadata.get(prefix)
    if part == "attn_k":
        heads = file.metadata.get(f"{prefix}_kv", heads)
    heads = heads if isinstance(heads, int) else heads[0]  # a list holds the same for all layers
    if heads < 1:
        raise ModelError(f"{file.path}: {prefix} must be at least 1, but is {heads}")
    return int(heads)


def _family_name(name: str, special: Mapping[str, str]) -> str:
    """Its own, if no family has a place for it."""
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in _OUTSIDE:
        return f"{_OUTSIDE[parts[0]]}.{parts[1]}"
    if len(parts) == 4 and parts[0] == "blk":
        found = special.get(parts[2], _OF_A_LAYER.get(parts[2]))
        if found is not None:
            return f"model.layers.{parts[1]}.{found}.{parts[3]}"
    return name
