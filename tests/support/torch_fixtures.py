"""Fixtures of the tests that need torch, for the conftest.py of each folder of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

# Read when Triton is imported: without a GPU, its programs run in its interpreter.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tensors this small are faster without company, ten times so on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    """Engines set how many compute for the whole process."""
    threads = torch.get_num_threads()
    yield
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def same_tensors() -> None:
    """As ``same_draws``."""
    if "QUIRE_RANDOM_RUNS" not in os.environ:
        torch.default_generator.manual_seed(0)
