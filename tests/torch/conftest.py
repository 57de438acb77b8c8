"""Fixtures of the tests that need torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.small_models import make_model

# Read when Triton is imported: without a GPU, its programs run in its interpreter.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tensors this small are faster without company, ten times so on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a small model, by family; made once a session."""
    made: dict[str, Path] = {}

    def directory(family: str) -> Path:
        if family not in made:
            made[family] = make_model(family, tmp_path_factory.mktemp(family))
        return made[family]

    return directory
