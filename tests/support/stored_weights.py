"""Rounded projections by the formats' public descriptions, beside the weights they stand for.

A ``Case`` is the tensors of one projection called "a", its config, and its weight [out, in] in
float64, computed from the same random codes, scales and zeros and never from packed ones.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

OUTPUTS, INPUTS = 48, 128


class Case(NamedTuple):
    tensors: dict[str, Tensor]
    config: dict[str, Any]
    weight: np.ndarray


def packed(codes: np.ndarray, bits: int) -> Tensor:
    """[n, m] -> [n, m * bits / 32] int32, the first code in the lowest bits."""
    per_word = 32 // bits
    words = np.zeros((len(codes), -(-codes.shape[1] // per_word)), dtype=np.uint32)
    for column in range(codes.shape[1]):
        shift = np.uint32(bits * (column % per_word))
        words[:, column // per_word] |= codes[:, column].astype(np.uint32) << shift
    return torch.from_numpy(words.view(np.int32))


class Draw(NamedTuple):
    """What a format packs, and which group each input is of."""

    codes: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    group_of: np.ndarray

    @property
    def weight(self) -> np.ndarray:
        zeros, scales = (part[:, self.group_of] for part in (self.zeros, self.scales))
        return (self.codes - zeros) * scales.astype(float)


def draw(bits: int, group: int, symmetric: bool, shuffled: bool) -> Draw:
    rng = np.random.default_rng(bits + group)
    groups = -(-INPUTS // group)
    group_of = np.arange(INPUTS) // group
    zeros = np.full((OUTPUTS, groups), 1 << (bits - 1))
    if not symmetric:
        zeros = rng.integers(1, 1 << bits, (OUTPUTS, groups))
    scales = (rng.random((OUTPUTS, groups)) * 0.1 + 0.01).astype(np.float16)
    codes = rng.integers(0, 1 << bits, (OUTPUTS, INPUTS))
    return Draw(codes, zeros, scales, rng.permutation(group_of) if shuffled else group_of)


def gptq(bits: int, group: int, v2: bool = False, desc_act: bool = False) -> Case:
    drawn = draw(bits, group, symmetric=False, shuffled=desc_act)
    tensors = {
        "a.qweight": packed(drawn.codes, bits).T,
        "a.qzeros": packed((drawn.zeros - (0 if v2 else 1)).T, bits),
        "a.scales": torch.from_numpy(drawn.scales.T.copy()),
        "a.g_idx": torch.from_numpy(drawn.group_of.astype(np.int32)),
    }
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": desc_act}
    return Case(tensors, config | ({"checkpoint_format": "gptq_v2"} if v2 else {}), drawn.weight)


def auto_round(form: str) -> Case:
    """Packed as AutoGPTQ or GPTQModel do, but without what says which group an input is of."""
    case = gptq(4, 32, v2=form != "auto_round:auto_gptq")
    del case.tensors["a.g_idx"]
    config = {"quant_method": "auto-round", "packing_format": form, "bits": 4, "group_size": 32}
    return case._replace(config=config)


def modelopt(scale_shape: tuple[int, ...]) -> Case:
    """A scale for the tensor or each output, and those of activations, keys and values."""
    codes, scales = eight_bits(scale_shape)
    left = {f"a.{name}": torch.ones(()) for name in ("input_scale", "k_scale", "v_scale")}
    algorithm = "FP8_PER_CHANNEL_PER_TOKEN" if scale_shape else "FP8"
    config = {"quant_method": "modelopt", "quant_algo": algorithm, "kv_cache_quant_algo": "FP8"}
    by_output = scales.double().numpy()
    by_output = by_output[:, None] if scale_shape else by_output
    weight = codes.double().numpy() * by_output
    return Case({"a.weight": codes, "a.weight_scale": scales, **left}, config, weight)


def _compressed(form: str, weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, **more}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def pack_quantized(bits: int, group: int, symmetric: bool = True, g_idx: bool = False) -> Case:
    drawn = draw(bits, group, symmetric, g_idx)
    tensors = {
        "a.weight_packed": packed(drawn.codes, bits),
        "a.weight_scale": torch.from_numpy(drawn.scales).bfloat16(),
        "a.weight_shape": torch.tensor([OUTPUTS, INPUTS]),
    }
    drawn = drawn._replace(scales=tensors["a.weight_scale"].float().numpy())
    if not symmetric:
        tensors["a.weight_zero_point"] = packed(drawn.zeros.T, bits).T
    if g_idx:
        tensors["a.weight_g_idx"] = torch.from_numpy(drawn.group_of.astype(np.int32))
    strategy = "channel" if group == INPUTS else "group"
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy}
    size = {"group_size": group} if strategy == "group" else {}
    return Case(tensors, _compressed("pack-quantized", weights | size), drawn.weight)


def int_quantized(group: int, symmetric: bool = True, rows: dict[str, Any] | None = None) -> Case:
    drawn = draw(8, group, symmetric, shuffled=False)
    tensors = {
        "a.weight": torch.from_numpy(drawn.codes - 128).to(torch.int8),
        "a.weight_scale": torch.from_numpy(drawn.scales),
    }
    if not symmetric:
        tensors["a.weight_zero_point"] = torch.from_numpy(drawn.zeros - 128).to(torch.int8)
    if rows is not None:
        tensors["a.input_scale"] = torch.ones(1)
    strategy = "channel" if group == INPUTS else "group"
    weights = {"num_bits": 8, "type": "int", "symmetric": symmetric, "strategy": strategy}
    size = {"group_size": group} if strategy == "group" else {}
    config = _compressed("int-quantized", weights | size, input_activations=rows)
    return Case(tensors, config, drawn.weight)


DYNAMIC = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
STATIC = {**DYNAMIC, "strategy": "tensor", "dynamic": False}


def float_quantized(scale_shape: tuple[int, ...]) -> Case:
    codes, scales = eight_bits(scale_shape)
    strategy = "tensor" if len(scale_shape) < 2 else "channel"
    weights = {"num_bits": 8, "type": "float", "strategy": strategy}
    tensors = {"a.weight": codes, "a.weight_scale": scales, "a.input_scale": torch.ones(1)}
    weight = codes.double().numpy() * scales.double().numpy()
    return Case(tensors, _compressed("float-quantized", weights), weight)


def eight_bits(scale_shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    codes = (torch.randn(OUTPUTS, INPUTS) * 100).to(torch.float8_e4m3fn)
    return codes, torch.rand(scale_shape).mul_(0.01).add_(0.001)


def fp8_blocks(block: tuple[int, int]) -> Case:
    counts = tuple(-(-size // n) for size, n in zip((OUTPUTS, INPUTS), block, strict=True))
    codes, scales = eight_bits(counts)
    places = np.ix_(np.arange(OUTPUTS) // block[0], np.arange(INPUTS) // block[1])
    weight = codes.double().numpy() * scales.double().numpy()[places]
    config = {"quant_method": "fp8", "weight_block_size": list(block)}
    return Case({"a.weight": codes, "a.weight_scale_inv": scales}, config, weight)


def bitsandbytes_4(nested: bool, storage: torch.dtype = torch.uint8, block: int = 64) -> Case:
    rng = np.random.default_rng(1)
    count = OUTPUTS * INPUTS
    codes, table = rng.integers(0, 16, count), np.sort(rng.standard_normal(16)).astype(np.float32)
    raw = torch.from_numpy((codes[::2] << 4 | codes[1::2]).astype(np.uint8))
    blocks = -(-count // block)
    state = {"quant_type": "nf4", "blocksize": block, "dtype": "float32"}
    state |= {"shape": [OUTPUTS, INPUTS]}
    tensors = {
        "a.weight": raw.view(storage)[:, None],
        "a.weight.quant_map": torch.from_numpy(table),
    }
    if nested:
        inner = rng.integers(0, 256, blocks)
        steps = np.sort(rng.standard_normal(256)).astype(np.float32)
        outer = rng.random(-(-blocks // 32)).astype(np.float32)
        tensors["a.weight.absmax"] = torch.from_numpy(inner.astype(np.uint8))
        tensors["a.weight.nested_absmax"] = torch.from_numpy(outer)
        tensors["a.weight.nested_quant_map"] = torch.from_numpy(steps)
        state |= {"nested_blocksize": 32, "nested_offset": 0.5, "nested_dtype": "float32"}
        largest = steps[inner].astype(float) * outer[np.arange(blocks) // 32] + 0.5
    else:
        largest = rng.random(blocks).astype(np.float32).astype(float)
        tensors["a.weight.absmax"] = torch.from_numpy(largest.astype(np.float32))
    tensors["a.weight.quant_state.bitsandbytes__nf4"] = torch.tensor(
        list(json.dumps(state).encode()), dtype=torch.uint8
    )
    weight = table[codes].astype(float) * largest[np.arange(count) // block]
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    return Case(tensors, config, weight.reshape(OUTPUTS, INPUTS))


def bitsandbytes_8() -> Case:
    drawn = draw(8, INPUTS, symmetric=True, shuffled=False)
    largest = torch.from_numpy(drawn.scales[:, 0].astype(np.float32) * 127)
    tensors = {
        "a.weight": torch.from_numpy(drawn.codes - 128).to(torch.int8),
        "a.SCB": largest,
        "a.weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    return Case(tensors, config, drawn.weight)
