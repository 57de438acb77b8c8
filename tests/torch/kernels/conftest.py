"""Triton's interpreter is slow: of each test over kernels it gets a part of the cases."""

from __future__ import annotations

import os
import random
from collections import defaultdict

import pytest

from support.gpu_kernels import INTERPRETED

_SHARE = 24  # QUIRE_ALL_CASES=1 runs all of them; so does a GPU


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not INTERPRETED or os.environ.get("QUIRE_ALL_CASES"):
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        case = getattr(item, "callspec", None)
        if isinstance(item, pytest.Function) and case is not None and "triton" in case.id:
            cases[item.originalname].append(item)
    left_out: set[pytest.Item] = set()
    for name, found in cases.items():
        # Threads of the CPU are no matter of theirs.
        about_threads = any("threads" in item.callspec.params for item in found)
        share = 0 if about_threads else len(found) // _SHARE + 1
        kept = random.Random(name).sample(found, share)
        left_out.update(item for item in found if item not in kept)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))
