"""What a mixture's experts take and cost, for the person who starts an engine."""

from __future__ import annotations

from quire.engine.capacity import size_of
from quire.engine.config import EngineConfig
from quire.execution.free_memory import free_memory
from quire.models.base import Model


def describe_experts(model: Model, config: EngineConfig) -> str:
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
    left = free_memory()  # which the pool is not, touched or not
    return text + (
        f" They are in a file in {config.experts_path}, for which {size_of(left)} of memory are "
        f"left beside the pool: of the {size_of(of_token)} of them that a token reads, the disk "
        "gives what is not there."
    )
