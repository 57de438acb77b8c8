"""Which kernels compute."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from quire.kernels.ops import Kernels
from quire.kernels.products import Products
from quire.kernels.reference import ReferenceKernels

logger = logging.getLogger(__name__)


def choose_kernels(dtype: torch.dtype, instruction_set: str = "") -> Kernels:
    """The kernels for a model in main memory that computes in ``dtype``.

    ``instruction_set``: of those that can run here; by default the best.
    """
    try:
        from quire.kernels import cpu
    except ImportError as error:
        logger.warning(
            "this installation has no C++ kernels (was there a compiler when it was installed?): "
            "computing in plain PyTorch, which is much slower; %s",
            error,
        )
        return ReferenceKernels()
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
    try:
        return Products(instruction_set, piece)
    except ImportError:  # of which choose_kernels warns
        return None


def release_threads() -> None:
    """End the threads that compute for the calling one; they start again when they are needed.

    Each thread that computes has helpers of its own, and while all together are more than there
    are cores, GNU's OpenMP lets none of them spin. So an engine that is built in one thread and
    runs in another would be slower by a sixth.
    """
    try:
        from quire.kernels import _native
    except ImportError:
        return
    _native.release_threads()
