"""Every implementation of the kernels that this machine can run, as parameters of tests."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from quire.kernels.cpu import DTYPES, CPUKernels
from quire.kernels.ops import Kernels
from quire.kernels.reference import ReferenceKernels
from support.gpu_kernels import TRITON, triton_kernels
from support.instruction_sets import TESTED

KERNELS = ("reference", *TESTED, *TRITON)
# And the types of each. The faster ones have no float64, in which the reference shows its formulas.
TYPED = [("reference", torch.float64), *product(KERNELS, DTYPES)]

with_types = pytest.mark.parametrize(("kernels", "dtype"), TYPED, indirect=["kernels"], ids=str)


def make_kernels(name: str) -> Kernels:
    if name in TRITON:
        return triton_kernels()
    return ReferenceKernels() if name == "reference" else CPUKernels(name)
