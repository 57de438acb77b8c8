"""GPTQ and AWQ checkpoints of a float model, packed by the formats' public descriptions.

GPTQ (AutoGPTQ, "gptq"): qweight [in / 8, out], eight inputs in an int32; qzeros [groups,
out / 8], eight outputs in an int32, each zero less 1 (as it is in "gptq_v2"); scales [groups,
out]; g_idx [in].

AWQ (AutoAWQ, "gemm"): qweight [in, out / 8] and qzeros [groups, out / 8], in an int32 the outputs
0, 2, 4, 6, 1, 3, 5 and 7 from the low end; scales [groups, out].
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]
Change = Callable[[str, Tensor], Tensors]

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def rewritten(source: Path, target: Path, change: Change, quantization: Any = None) -> Path:
    """A copy of ``source`` with other tensors, and perhaps a quantization_config."""
    shutil.copytree(source, target)
    tensors: Tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        tensors.update(change(name, tensor))
    save_file({n: t.contiguous() for n, t in tensors.items()}, target / "model.safetensors")
    if quantization is not None:
        config = json.loads((target / "config.json").read_text())
        config["quantization_config"] = quantization
        (target / "config.json").write_text(json.dumps(config))
    return target


def is_projection(name: str) -> bool:
    """Whether formats round the tensor called ``name``."""
    return name.endswith("_proj.weight")


def rounded(weight: Tensor, group: int, symmetric: bool) -> tuple[np.ndarray, ...]:
    """Codes [out, in], zeros [out, groups] and float16 scales [out, groups]."""
    groups = weight.double().numpy().reshape(len(weight), -1, group)
    if symmetric:
        scales = np.abs(groups).max(axis=2) / 7
        zeros = np.full(scales.shape, 8)
    else:
        low, high = np.minimum(groups.min(axis=2), 0), np.maximum(groups.max(axis=2), 0)
        scales = (high - low) / 15
        zeros = np.clip(np.round(-low / scales), 1, 15).astype(int)
    scales = scales.astype(np.float16)
    codes = np.round(groups / scales[..., None].astype(float)) + zeros[..., None]
    return np.clip(codes, 0, 15).astype(int).reshape(weight.shape), zeros, scales


def as_floats(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray) -> Tensor:
    """The weights [out, in] that codes stand for, in float32."""
    centred = codes.reshape(*scales.shape, -1) - zeros[..., None]
    weight = centred * scales[..., None].astype(float)
    return torch.from_numpy(weight.reshape(codes.shape)).float()


def gptq(name: str, weight: Tensor, group: int, symmetric: bool, offset: int = 1) -> Tensors:
    """The tensors of a projection."""
    codes, zeros, scales = rounded(weight, group, symmetric)
    outputs, inputs = codes.shape
    qweight = np.zeros((inputs // 8, outputs), dtype=np.uint32)
    for i in range(inputs):
        qweight[i // 8] |= codes[:, i].astype(np.uint32) << np.uint32(4 * (i % 8))
    qzeros = np.zeros((zeros.shape[1], outputs // 8), dtype=np.uint32)
    for o in range(outputs):
        stored = (zeros[o] - offset).astype(np.uint32)
        qzeros[:, o // 8] |= stored << np.uint32(4 * (o % 8))
    return _named(name, qweight, qzeros, scales) | {
        f"{name}.g_idx": torch.arange(inputs, dtype=torch.int32) // group
    }


def awq(name: str, weight: Tensor, group: int) -> Tensors:
    """The tensors of a projection."""
    codes, zeros, scales = rounded(weight, group, symmetric=False)
    outputs, inputs = codes.shape
    qweight = np.zeros((inputs, outputs // 8), dtype=np.uint32)
    qzeros = np.zeros((zeros.shape[1], outputs // 8), dtype=np.uint32)
    for column in range(outputs // 8):
        for place, output in enumerate(_AWQ_ORDER):
            shift = np.uint32(4 * place)
            qweight[:, column] |= codes[8 * column + output].astype(np.uint32) << shift
            qzeros[:, column] |= zeros[8 * column + output].astype(np.uint32) << shift
    return _named(name, qweight, qzeros, scales)


def _named(name: str, qweight: np.ndarray, qzeros: np.ndarray, scales: np.ndarray) -> Tensors:
    return {
        f"{name}.qweight": torch.from_numpy(qweight.view(np.int32)),
        f"{name}.qzeros": torch.from_numpy(qzeros.view(np.int32)),
        f"{name}.scales": torch.from_numpy(scales.T.copy()),
    }
