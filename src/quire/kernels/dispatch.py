"""Which kernels compute."""

from __future__ import annotations

import logging

import torch

from quire.kernels.ops import Kernels
from quire.kernels.products import Products
from quire.kernels.reference import ReferenceKernels

logger = logging.getLogger(__name__)


def choose_kernels(dtype: torch.dtype) -> Kernels:
    """The best kernels there are here for a model in main memory that computes in ``dtype``."""
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
    kernels = cpu.CPUKernels()
    if kernels.instruction_set == "portable":
        logger.warning("this processor has no AVX2: its kernels are the portable ones, slower")
    return kernels


def choose_products() -> Products | None:
    """The best products with packed weights that there are here; None without the C++."""
    try:
        return Products()
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
