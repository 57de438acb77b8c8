"""What the GPU kernels can compute, and on which devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quire.core.errors import ConfigError, ModelError
from quire.kernels.layer_memory import KVShape, StateShape

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_HEAD = 256
LEAST_CAPABILITY = (8, 0)  # Ampere: the first with bfloat16
LEAST_FP8_CAPABILITY = (8, 9)


def check_device(name: str, capability: tuple[int, int]) -> None:
    """ConfigError if the kernels do not run on that device."""
    if capability < LEAST_CAPABILITY:
        raise ConfigError(
            f"device: {name} has compute capability {_version(capability)}; the GPU kernels need "
            f"{_version(LEAST_CAPABILITY)} (A100) or newer. --device cpu works"
        )


def check_model(shapes: Sequence[KVShape | StateShape], dtype: torch.dtype) -> None:
    """ModelError if the kernels lack a model's head sizes or type."""
    if dtype not in DTYPES:
        names = ", ".join(_name(one) for one in DTYPES)
        raise ModelError(
            f"the GPU kernels compute in {names}, and the model is {_name(dtype)}: choose one of "
            "them with --dtype, or --device cpu"
        )
    paged = [shape for shape in shapes if isinstance(shape, KVShape)]
    largest = max((max(shape.key_dim, shape.value_dim) for shape in paged), default=0)
    if largest > LARGEST_HEAD:
        raise ModelError(
            f"the GPU kernels have heads of up to {LARGEST_HEAD} dimensions, and the model's have "
            f"{largest}; --device cpu works"
        )
    keys = (one.state[1] for one in shapes if isinstance(one, StateShape) and one.state)
    widest = max(keys, default=0)
    if widest > LARGEST_HEAD:
        raise ModelError(
            f"the GPU kernels have states with keys of up to {LARGEST_HEAD} dimensions, and the "
            f"model's have {widest}; --device cpu works"
        )


def check_cache_dtype(dtype: torch.dtype, name: str, capability: tuple[int, int]) -> None:
    """ConfigError if the device cannot convert the numbers of such a KV cache."""
    if dtype == torch.float8_e4m3fn and capability < LEAST_FP8_CAPABILITY:
        raise ConfigError(
            f"kv_cache_dtype fp8 needs a device of compute capability "
            f"{_version(LEAST_FP8_CAPABILITY)} (L4, H100) or newer; {name} has "
            f"{_version(capability)}"
        )


def _version(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
