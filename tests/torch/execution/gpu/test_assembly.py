"""What stands on a GPU is put together in its order; the device's memory is made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quire.core.errors import ConfigError, ModelError
from quire.engine.assembly.loading import cache_shape
from quire.engine.capacity import limits_of
from quire.engine.config import EngineConfig
from quire.execution.batch import pack
from quire.models.loader import load_model
from support.chunks import decode_chunks
from support.gpu_kernels import INTERPRETED, TRITON, triton_kernels
from support.limits import make_limits
from support.memory_watch import watch_interpreter

pytestmark = pytest.mark.skipif(not (TRITON and INTERPRETED), reason="for Triton's interpreter")

TOTAL = 100 << 20


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A GPU of 100 MiB, on which a step takes as much as ``working`` says."""
    from quire.kernels.gpu.kernels import GPUKernels

    state = SimpleNamespace(working=8 << 20, free=TOTAL)
    traits = SimpleNamespace(name="a GPU", uuid="GPU-1", major=9, minor=0)
    answers: dict[str, Callable[..., object]] = {
        "get_device_properties": lambda device: traits,
        "mem_get_info": lambda device: (state.free, TOTAL),
        "memory_reserved": lambda device: 0,
        "max_memory_reserved": lambda device: state.working,
        "synchronize": lambda device: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda device: None,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(GPUKernels, "on", lambda device: triton_kernels())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return state


@pytest.fixture
def runtime(gpu: SimpleNamespace) -> Any:
    from quire.execution.gpu.assembly import OnGPU

    return OnGPU(torch.device("cpu"), 0.5, enforce_eager=True)


LIMITS = make_limits(
    64, 256, 4, windows=(None, None), block_size=4, max_num_seqs=4, max_num_batched_tokens=24
)


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_an_engine_is_put_together_within_its_share(
    family: str,
    gpu: SimpleNamespace,
    runtime: Any,
    model_dir: Callable[[str], Path],
) -> None:
    # The largest step is that of many sequences in one block.
    with runtime.start_up_lock(), watch_interpreter().meaningless():
        model = load_model(model_dir(family), "float32", admit=runtime.admit)
        config = EngineConfig(
            max_model_len=256, block_size=4, max_num_seqs=4, max_num_batched_tokens=24
        )
        limits = limits_of(config, cache_shape(model, model.dtype)).with_blocks(64, 4)
        room = runtime.memory_budget(model, limits, model.dtype)
        assert room.free * room.share == TOTAL // 2 - gpu.working
        executor = runtime.executor(model, limits, model.dtype)
        costs = runtime.recovery_costs()
    assert costs.swap_per_block > 0 and costs.recompute_per_token > 0
    assert executor is runtime.parts.executor
    for chunks in decode_chunks() if family == "llama" else []:
        batch = pack(chunks, 4, range(len(chunks)))
        assert runtime.parts.forward(batch, list).asked.isfinite().all()


def test_what_does_not_fit_is_refused_by_name(
    gpu: SimpleNamespace, runtime: Any, model_dir: Callable[[str], Path]
) -> None:
    with runtime.start_up_lock(), watch_interpreter().meaningless():
        with pytest.raises(ModelError, match=r"weights are 60\.0 MiB.*50\.0 MiB"):
            runtime.admit(60 << 20)
        model = load_model(model_dir("llama"), "float32")
        gpu.working = 60 << 20
        with pytest.raises(ConfigError, match=r"the largest step 60\.0 MiB.*max_num_batched"):
            runtime.memory_budget(model, LIMITS, model.dtype)
    gpu.free = 40 << 20
    with (
        pytest.raises(ConfigError, match=r"gpu_memory_utilization 0\.5 .*lower it to 0\.4"),
        runtime.start_up_lock(),
    ):
        pass
