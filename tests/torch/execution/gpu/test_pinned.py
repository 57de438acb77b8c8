"""Memory to swap to is pinned as it is, and given back."""

from __future__ import annotations

import gc

import pytest
import torch

from quire.core.errors import ConfigError
from quire.execution.gpu import memory
from quire.execution.gpu.memory import swap_memory


class Driver:
    """Stands in for the CUDA runtime."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if not self.error:
            self.registered[address] = size
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        return 0


def test_no_more_is_pinned_than_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    memory = swap_memory(5_000, torch.device("cuda"))
    assert driver.registered == {memory.data_ptr(): 5_000}
    assert memory.nbytes == 5_000
    del memory
    gc.collect()
    assert driver.registered == {}


def test_memory_that_is_not_there_is_refused_before_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Driver(error=2))
    with pytest.raises(ConfigError, match=r"swap_space: 5,000 bytes .*CUDA error 2.*ulimit -l"):
        swap_memory(5_000, torch.device("cuda"))
    monkeypatch.setattr(memory, "free_memory", lambda: 4_999)
    with pytest.raises(ConfigError, match=r"swap_space: 5,000 bytes .* only 4,999 are free"):
        swap_memory(5_000, torch.device("cpu"))
