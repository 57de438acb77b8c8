from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

_SLOW = "QUIRE_REFERENCES"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Only ``make test-references`` asks others: it fetches some 300 MB and takes minutes."""
    if os.environ.get(_SLOW):
        return
    for item in items:
        if "tests/references/" in str(item.path):
            item.add_marker(pytest.mark.skip(reason=f"{_SLOW} is not set: make test-references"))


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
