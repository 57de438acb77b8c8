"""Which device is chosen, and what is said where one cannot be used."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quire.core.errors import ConfigError
from quire.execution import device
from quire.execution.device import choose_device


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A made-up GPU that works; tests break it."""
    traits = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, error=None)

    def init() -> None:
        if traits.error is not None:
            raise traits.error

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: traits)
    monkeypatch.setattr(device, "find_spec", lambda name: name)
    return traits


def test_a_gpu_that_works_is_taken(gpu: SimpleNamespace) -> None:
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda", 0)
    assert choose_device("cpu") == torch.device("cpu")


def test_without_cuda_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"device cuda: PyTorch .* without CUDA.*--device cpu"):
        choose_device("cuda")


@pytest.mark.parametrize(
    "reason",
    [
        "The NVIDIA driver on your system is too old (found version 11040). Please update",
        "No CUDA GPUs are available",
        "Found no NVIDIA driver on your system",
    ],
)
def test_a_driver_that_does_not_work_is_named(
    reason: str, gpu: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.error = RuntimeError(f"{reason}\nand more")
    with pytest.raises(ConfigError) as raised:
        choose_device("cuda")
    assert reason in str(raised.value)
    assert "built for CUDA 12.8" in str(raised.value)
    assert "and more" not in str(raised.value)
    assert choose_device("auto") == torch.device("cpu")
    assert reason in caplog.text


def test_a_gpu_that_is_too_old_is_named(gpu: SimpleNamespace) -> None:
    gpu.name, gpu.major, gpu.minor = "Tesla V100", 7, 0
    with pytest.raises(ConfigError, match=r"Tesla V100 has compute capability 7\.0"):
        choose_device("cuda")
    assert choose_device("auto") == torch.device("cpu")


def test_triton_is_asked_for(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> Any:
        return None

    monkeypatch.setattr(device, "find_spec", nothing)
    with pytest.raises(ConfigError, match="pip install triton"):
        choose_device("cuda")


def test_a_cpu_engine_loads_nothing_of_the_gpus() -> None:
    code = """
import sys
from quire import LLM
LLM(max_model_len=64)
print(*(name for name in sys.modules if name == "triton" or "gpu" in name))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() in ([], ["quire.kernels.gpu", "quire.kernels.gpu.support"])
