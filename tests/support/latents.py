"""Cases of attention whose values are a part of the keys, as in latent attention."""

from __future__ import annotations

from dataclasses import replace

import torch

from quire.kernels.layer_memory import LayerKV
from support.attention_cases import RAGGED, Case, make_case


def latent_case(
    dtype: torch.dtype,
    heads: int,
    dims: tuple[int, int],
    block_size: int = 16,
    ragged: tuple[tuple[int, int], ...] = RAGGED,
    **more: int,
) -> Case:
    """As ``make_case`` has it: one head is kept, whose value is its key's last numbers."""
    case = make_case(dtype, (heads, 1), dims, block_size, ragged, **more)
    keys, width = case.kv.keys, dims[1]
    kv = LayerKV(keys, keys.new_empty((*keys.shape[:3], 0)), latent=width)
    return replace(case, kv=kv, values=[one[..., -width:] for one in case.keys])
