"""These tests run on an NVIDIA GPU, and are skipped where there is none."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() and find_spec("triton"):
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU and Triton"))
