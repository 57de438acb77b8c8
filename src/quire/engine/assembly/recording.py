"""What writes down what an engine serves, as its settings ask for it."""

from __future__ import annotations

from pathlib import Path

from quire.core.kv_groups import sights_of
from quire.core.limits import EngineLimits
from quire.engine.capacity import Capacity
from quire.engine.config import EngineConfig
from quire.engine.engine import Engine
from quire.engine.recorder import RequestRecorder
from quire.engine.step_recorder import StepRecorder


def recorder_of(config: EngineConfig, capacity: Capacity, started: float) -> RequestRecorder | None:
    """Of requests. ``started``: what the engine's clock shows where the recording counts from."""
    if config.record_trace is None:
        return None
    told = {"model": Path(capacity.model_name).name, "limits": capacity.limits.values()}
    return RequestRecorder(
        Path(config.record_trace),
        config.block_size,
        started,
        drafts=config.speculation is not None,
        engine=told,
    )


def watch_steps(engine: Engine, config: EngineConfig, limits: EngineLimits, started: float) -> None:
    """Write down the steps, if that is asked for."""
    if config.record_steps is not None:
        path, sights = Path(config.record_steps), sights_of(limits.kv_groups)
        engine.watchers.add(StepRecorder(path, sights, started))
