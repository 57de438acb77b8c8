"""What a mixture's experts take and cost, for the person who starts an engine."""

from __future__ import annotations

from quire.capacity import size_of
from quire.config import EngineConfig
from quire.execution.device_runtime import DeviceRuntime
from quire.execution.free_memory import free_memory
from quire.model import Model


def describe_experts(
    model: Model, config: EngineConfig, runtime: DeviceRuntime, pool_bytes: int
) -> str:
    """Empty where there are none."""
    if model.experts is None:
        return ""
    num, chosen, weight_bytes = model.experts
    of_token = weight_bytes * chosen // num
    read = model.weight_bytes - weight_bytes + of_token
    text = (
        f" Experts: {num}, {chosen} a token; {size_of(weight_bytes)} of the weights are theirs, "
        f"and {size_of(read)} of all are read a token."
    )
    if config.experts_path is None:
        return text
    taken = pool_bytes if runtime.warm_seconds is None else 0  # of a pool that is not touched yet
    left = max(0, free_memory() - taken)
    return text + (
        f" They are in a file in {config.experts_path}, for which {size_of(left)} of memory are "
        f"left beside the pool: of the {size_of(of_token)} of them that a token reads, the disk "
        "gives what is not there."
    )
