"""A GGUF file's tensors under the names that the families have for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from reprlib import repr as short
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.core.errors import ModelError
from quire.models.file_bytes import FileBytes
from quire.models.gguf import GGUFFile, TensorInfo, is_list, open_gguf, parts_of
from quire.models.gguf.architecture import EXPERTS, Architecture
from quire.models.gguf.by_layer import numbers_of_layers
from quire.models.gguf.config import architecture_of, is_of_guesses
from quire.models.gguf.types import TYPES
from quire.models.gguf_tensors.blocks import read_blocks
from quire.models.parts import ALL, WHOLE, TensorPart
from quire.models.stored import ByGroups

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_F32 = next(kind for kind in TYPES.values() if kind.name == "F32")
_IN_CONFIG = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_HEADS, _STREAMS = "attention.head_count", "altup.num_inputs"
_QKV = re.compile(r"blk\.\d{1,9}\.attn_qkv\.")
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_FUSED = "ffn_gate_up_exps"  # the rows of each expert's gate, then those of its up
_FUSED_OF = ("ffn_gate_exps", "ffn_up_exps")
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
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}


class TensorSlice(NamedTuple):
    """The facts about a tensor before it is read, in safetensors' form."""

    info: TensorInfo

    def get_shape(self) -> Sequence[int]:
        return self.info.shape

    def get_dtype(self) -> str:
        return self.info.type.name


class _Place(NamedTuple):
    """A tensor's place in a file, or that of an expert's part of it."""

    name: str  # in the file
    info: TensorInfo


class GGUFTensors:
    """Tensors of an open file as safetensors' handle gives them, and quantised ones as they are.

    A tensor is read into memory of its own.
    """

    def __init__(self, path: Path) -> None:
        """ModelError: see ``open_gguf``; or the architecture is not supported."""
        self._bytes = {one: FileBytes(one) for one in {path, *parts_of(path)} if one.exists()}
        self._file = open_gguf(path)
        self._architecture = architecture_of(self._file)
        self._stored = dict(_places(self._file, self._architecture))
        self._told = numbers_of_layers(self._file, self._architecture)
        self.bytes_read = 0

    def keys(self) -> list[str]:
        return [*self._stored, *self._told]

    def get_slice(self, name: str) -> TensorSlice:
        return TensorSlice(self._info(name))

    def get_tensor(self, name: str, part: TensorPart = WHOLE) -> Tensor:
        """A tensor as floats."""
        if name in self._told:
            return torch.tensor([self._told[name]])
        info = self._info(name)
        if info.type.is_rounded:
            return part.of(self.get_rounded(name).floats(torch.float32))
        tensor = self._rows(name, part).view(_FLOATS[info.type.name])
        tensor = tensor if len(info.shape) > 1 else tensor.flatten()
        added_one = name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")
        if self._architecture.norms_with_one and added_one:
            tensor = tensor.float() - 1
        return tensor

    def get_rounded(self, name: str, part: TensorPart = WHOLE) -> ByGroups:
        """A tensor's codes and their groups."""
        return read_blocks(self._info(name).type, self._rows(name, part))

    def _info(self, name: str) -> TensorInfo:
        if name in self._told:
            return TensorInfo((1,), _F32, 0, _F32.num_bytes, self._file.path)
        return self._stored[name].info

    def _rows(self, name: str, part: TensorPart) -> Tensor:
        """The bytes of a part [rows, bytes], in memory of their own."""
        info = self._info(name)
        order, file = self._order(name, info.shape[0]), self._bytes[info.path]
        if part.is_whole:
            data = file.read(info.start, info.num_bytes)
            rows = torch.from_numpy(data).view(info.shape[0], -1)
            rows = rows if order is None else rows[order]
        else:
            data = file.mapped(info.start, info.num_bytes)
            chosen = part.rows if order is None else order[part.rows]
            whole = torch.from_numpy(data).view(info.shape[0], -1)
            rows = TensorPart(chosen, _in_bytes(info, part.columns)).of(whole).clone()
        self.bytes_read += rows.nbytes
        return rows

    def _order(self, name: str, rows: int) -> Tensor | None:
        """The order of the rows of queries and keys; None: as stored.

        A head's two halves are rotated with each other; pairs of neighbours are stored.
        """
        stored = self._stored[name].name
        part = stored.split(".")[-2]
        if not self._architecture.interleaved or part not in ("attn_q", "attn_k"):
            return None
        heads = _num_heads(self._file, part)
        if rows % (2 * heads):
            raise ModelError(f"{self._file.path}: {stored} has no rows for {heads} heads")
        return torch.arange(rows).view(heads, -1, 2).transpose(1, 2).flatten()


def _in_bytes(info: TensorInfo, columns: slice | Tensor) -> slice:
    """The bytes of ``columns``, which are whole blocks, in a row."""
    assert isinstance(columns, slice)
    if columns is ALL:
        return ALL
    return slice(
        *(end // info.type.weights * info.type.num_bytes for end in (columns.start, columns.stop))
    )


def _places(file: GGUFFile, architecture: Architecture) -> Iterator[tuple[str, _Place]]:
    """All that are no part of the config, by the families' names."""
    for name, info in file.tensors.items():
        if is_of_guesses(name):
            continue
        if f".{_FUSED}." in name and _FUSED not in architecture.names:
            yield from _fused_places(file, architecture, name, info)
            continue
        if architecture.parted and _QKV.match(name):
            yield from _parted_places(file, architecture, name, info)
            continue
        found = _family_name(name, architecture)
        if found is None:
            if name not in _IN_CONFIG:
                yield name, _Place(name, info)
        elif "{}" in found:
            for number, one in enumerate(_each(file, architecture, name, info)):
                yield found.replace("{}", str(number)), _Place(name, one)
        elif name.endswith("_inp_shexp.weight") and len(info.shape) == 1:  # a single row
            yield found, _Place(name, info._replace(shape=(1, *info.shape)))
        else:
            yield found, _Place(name, info)


def _fused_places(
    file: GGUFFile, architecture: Architecture, name: str, info: TensorInfo
) -> Iterator[tuple[str, _Place]]:
    """The places of a tensor that holds gate and up of all experts."""
    found = [_family_name(name.replace(_FUSED, part), architecture) for part in _FUSED_OF]
    for number, one in enumerate(_each(file, architecture, name, info)):
        rows, *columns = one.shape
        if rows % 2:
            raise ModelError(f"{file.path}: {short(name)} has {rows} rows, which are not two parts")
        halves = one._replace(shape=(2, rows // 2, *columns)).each()
        for own, half in zip(found, halves, strict=True):
            if own is not None:
                yield own.replace("{}", str(number)), _Place(name, half)


def _parted_places(
    file: GGUFFile, architecture: Architecture, name: str, info: TensorInfo
) -> Iterator[tuple[str, _Place]]:
    """The places of a tensor that holds queries, then keys, then values of all heads."""
    rows = _rows_of_heads(file, architecture.name, int(name.split(".")[1]))
    if info.shape[0] != sum(rows):
        raise ModelError(
            f"{file.path}: {short(name)} has {info.shape[0]:,} rows, and heads have {sum(rows):,}"
        )
    start, of_row = info.start, info.num_bytes // info.shape[0]
    for part, own in zip("qkv", rows, strict=True):
        shape, size = (own, *info.shape[1:]), own * of_row
        found = _family_name(name.replace("attn_qkv", f"attn_{part}"), architecture)
        assert found is not None, "all families have queries, keys and values"
        yield found, _Place(name, info._replace(shape=shape, start=start, num_bytes=size))
        start += size


def _rows_of_heads(file: GGUFFile, name: str, layer: int) -> tuple[int, int, int]:
    """Numbers of all queries, keys and values of a layer. ModelError: a field is no size."""

    def size(field: str, usual: int | None = None) -> int:
        value = file.metadata.get(f"{name}.{field}", usual)
        if is_list(value):
            value = value[layer] if layer < len(value) else None
        if type(value) is not int or value < 1:
            raise ModelError(f"{file.path}: {name}.{field} must be at least 1, not {short(value)}")
        return value

    queries = size(_HEADS)
    keys = size(f"{_HEADS}_kv", queries)
    key = size("attention.key_length", size("embedding_length") // queries)
    return queries * key, keys * key, keys * size("attention.value_length", key)


def _each(
    file: GGUFFile, architecture: Architecture, name: str, info: TensorInfo
) -> list[TensorInfo]:
    """The weights of a tensor that is one for each expert, for each head, or for each stream but
    the first.
    """
    outside = not name.startswith("blk.")
    own = _STREAMS if outside else _HEADS if ".attn_" in name else EXPERTS
    field = f"{architecture.name}.{own}"
    count = file.metadata.get(field, 0) - outside
    dimensions = 3 if name.endswith(".weight") else 2
    if len(info.shape) != dimensions or info.shape[0] != count:
        raise ModelError(
            f"{file.path}: {short(name)} has shape {info.shape}, but {field} is {short(count)}"
        )
    return info.each()


def _num_heads(file: GGUFFile, part: str) -> int:
    prefix = f"{file.metadata['general.architecture']}.{_HEADS}"
    heads: Any = file.metadata.get(prefix)
    if part == "attn_k":
        heads = file.metadata.get(f"{prefix}_kv", heads)
    heads = heads if isinstance(heads, int) else max(heads)  # the same for all layers, or none
    if heads < 1:
        raise ModelError(f"{file.path}: {prefix} must be at least 1, but is {heads}")
    return int(heads)


def _family_name(name: str, known: Architecture) -> str | None:
    """The family's name for a tensor; None if no family has it."""
    parts, special = name.split("."), known.names
    if len(parts) == 2:
        found = special.get(parts[0], _OUTSIDE.get(parts[0]))
        return None if found is None else f"{found}.{parts[1]}"
    if len(parts) < 3 or parts[0] != "blk" or not parts[1].isdecimal():
        return None
    whole = special.get(".".join(parts[2:]))
    if whole is not None:
        return ".".join([known.layers, parts[1], whole])
    own, end = (parts[2:3], []) if len(parts) == 3 else (parts[2:-1], parts[-1:])
    found = special.get(".".join(own), _OF_A_LAYER.get(".".join(own)))
    return None if found is None else ".".join([known.layers, parts[1], found, *end])
