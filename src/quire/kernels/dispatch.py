"""Chooses the kernels that compute."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from quire.kernels.compiled import KERNELS, why_missing
from quire.kernels.ops import Kernels
from quire.kernels.products import Products
from quire.kernels.reference import ReferenceKernels

logger = logging.getLogger(__name__)


def choose_kernels(dtype: torch.dtype, instruction_set: str = "") -> Kernels:
    """The kernels for a model in main memory that computes in ``dtype``.

    ``instruction_set``: of those that can run here; by default the best.
    """
    missing = why_missing(KERNELS)
    if missing is not None:
        logger.warning(
            "this installation has no C++ kernels (was there a compiler when it was installed?): "
            "computing in plain PyTorch, which is much slower; %s",
            missing,
        )
        return ReferenceKernels()
    from quire.kernels import cpu

    if dtype not in cpu.DTYPES:
        logger.warning("the C++ kernels have no %s: computing in plain PyTorch", dtype)
        return ReferenceKernels()
    return cpu.CPUKernels(instruction_set)


def choose_products(
    instruction_set: str = "", piece: Callable[[int], Tensor] | None = None
) -> Products | None:
    """The products with packed weights, of the same instructions; None without the C++.

    piece: of the memory for these weights, see ``HugePages``.
    """
    if why_missing(KERNELS) is not None:  # of which choose_kernels warns
        return None
    return Products(instruction_set, piece)


def release_threads() -> None:
    """End the threads that compute for the calling one; they start again when they are needed.

    Each thread that computes has helpers of its own, and while all together are more than there
    are cores, GNU's OpenMP lets none of them spin. So an engine that is built in one thread and
    runs in another would be slower by a sixth.
    """
    if why_missing(KERNELS) is None:
        from quire.kernels import _native

        _native.release_threads()
