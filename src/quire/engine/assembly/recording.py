"""What writes down what an engine serves, as its settings ask for it."""

from __future__ import annotations

from pathlib import Path

from quire.engine.capacity import Capacity
from quire.engine.config import EngineConfig
from quire.engine.engine import Engine
from quire.engine.recorder import RequestRecorder, StepRecorder
from quire.engine.work import sights_of


def record(engine: Engine, config: EngineConfig, capacity: Capacity, started: float) -> None:
    """Have requests and steps written down, as far as that is asked for.

    started: what the engine's clock shows where the recordings count from.
    """
    limits = capacity.limits
    if config.record_trace is not None:
        told = {"model": Path(capacity.model_name).name, "limits": limits.values()}
        engine.events.add(
            RequestRecorder(
                Path(config.record_trace),
                config.block_size,
                started,
                drafts=config.speculation is not None,
                engine=told,
            )
        )
    if config.record_steps is not None:
        path, sights = Path(config.record_steps), sights_of(limits.kv_groups)
        engine.events.add(StepRecorder(path, sights, started))
