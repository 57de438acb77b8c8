"""The kernels of a machine are chosen at start, and a lack of them is told."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import torch

from quire import LLM
from quire.kernels import cpu
from quire.kernels.dispatch import choose_kernels, release_threads
from quire.kernels.reference import ReferenceKernels


@pytest.mark.parametrize("dtype", cpu.DTYPES, ids=str)
def test_the_best_instruction_set_is_chosen(dtype: torch.dtype) -> None:
    kernels = choose_kernels(dtype)
    assert isinstance(kernels, cpu.CPUKernels)
    assert kernels.instruction_set == cpu.instruction_sets()[0]


def test_the_portable_kernels_are_always_there() -> None:
    assert cpu.instruction_sets()[-1] in ("portable", "neon")  # what every processor has
    with pytest.raises(ValueError, match="sse9"):
        cpu.CPUKernels("sse9")


def helpers_of(tasks: Path = Path("/proc/self/task")) -> int:
    return len(list(tasks.iterdir()))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists threads")
def test_an_engine_leaves_no_threads_behind_for_the_thread_that_built_it() -> None:
    threads = torch.get_num_threads()
    try:
        release_threads()
        before = helpers_of()
        torch.set_num_threads(3)
        kernels = cpu.CPUKernels()
        kernels.argmax(torch.randn(64, 50_000))
        assert helpers_of() == before + 2
        release_threads()
        assert helpers_of() == before
        assert kernels.argmax(torch.eye(64, 50_000)).tolist() == list(range(64))
        LLM(kv_cache_memory_bytes="16MiB", threads=3)
        assert helpers_of() <= before + 1  # one that turns text into tokens may have come
    finally:
        torch.set_num_threads(threads)


def test_without_the_module_torch_computes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "quire.kernels.cpu", None)
    monkeypatch.delattr("quire.kernels.cpu")
    with caplog.at_level(logging.WARNING):
        assert isinstance(choose_kernels(torch.float32), ReferenceKernels)
    assert "no C++ kernels" in caplog.text


def test_types_that_the_kernels_lack_fall_back_at_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert isinstance(choose_kernels(torch.float64), ReferenceKernels)
    assert "float64" in caplog.text


def test_one_openmp_serves_torch_and_the_kernels() -> None:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    loaded = {line.split()[-1] for line in maps if "gomp" in line}
    assert len(loaded) == 1
