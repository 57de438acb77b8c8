"""Whether a tensor is a view of its file or a copy."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor


def is_mapped(tensor: Tensor, path: Path) -> bool:
    """Does ``tensor`` lie where ``path`` is mapped into memory? Skips where there is no /proc."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    lines = [line.split() for line in maps.read_text().splitlines()]
    ranges = [line[0].split("-") for line in lines if line[-1] == str(path.resolve())]
    return any(int(a, 16) <= tensor.data_ptr() < int(b, 16) for a, b in ranges)
