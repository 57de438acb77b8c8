"""Tests over kernels, once for each that can run here.

Triton's interpreter is slow: of each test it gets a part of the cases. So are tiles in plain C++:
they get those of bfloat16, for in other types AMX uses no tiles and does what AVX-512 does. And of
a test with hundreds of cases, a part of them runs.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Iterator

import pytest
import torch

from quire.kernels.ops import Kernels
from support.every_kernel import KERNELS, make_kernels
from support.gpu_kernels import INTERPRETED

_SHARE = 48  # QUIRE_ALL_CASES=1 runs all of them; so does a GPU
_MOST = 250  # cases of one test


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_out(config, items, {item for item in items if _on_tiles_without_need(item)})
    if not INTERPRETED or os.environ.get("QUIRE_ALL_CASES"):
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        case = getattr(item, "callspec", None)
        if isinstance(item, pytest.Function) and case is not None and "triton" in case.id:
            cases[item.originalname].append(item)
    left_out: set[pytest.Item] = set()
    for name, found in _by_test(items).items():
        left_out.update(random.Random(name).sample(found, max(0, len(found) - _MOST)))
    for name, found in cases.items():
        # Threads of the CPU are no matter of theirs.
        about_threads = any("threads" in item.callspec.params for item in found)
        share = 0 if about_threads else len(found) // _SHARE + 1
        kept = random.Random(name).sample(found, share)
        left_out.update(item for item in found if item not in kept)
    _leave_out(config, items, left_out)


def _by_test(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    found: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function):
            found[item.nodeid.partition("[")[0]].append(item)
    return found


def _on_tiles_without_need(item: pytest.Item) -> bool:
    case = getattr(item, "callspec", None)
    if case is None or "amx_portable" not in case.params.values():
        return False
    types = [value for value in case.params.values() if isinstance(value, torch.dtype)]
    return any(dtype is not torch.bfloat16 for dtype in types)


def _leave_out(config: pytest.Config, items: list[pytest.Item], left_out: set[pytest.Item]) -> None:
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return make_kernels(request.param)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """New tensors hold NaN until they are written."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan()
    yield
    torch.use_deterministic_algorithms(False)
