"""An engine and the app that serves it, put together from their settings."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from fastapi import FastAPI

from quire.engine.assembly import build_engine
from quire.engine.capacity import Capacity
from quire.engine.config import EngineConfig
from quire.engine.dashboard import PoolBytes
from quire.engine.engine import Engine
from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from quire.http.service import ModelFacts


class ServedApp(NamedTuple):
    app: FastAPI
    engine: Engine
    capacity: Capacity


def build(
    engine_config: EngineConfig, config: ServerConfig, replica: str = "", engines: int = 1
) -> ServedApp:
    """Load the model, and make its app.

    replica: what the engine is called among others that serve together.
    engines: how many of them share this machine's memory.
    """
    if engine_config.warm_up is None:
        engine_config = replace(engine_config, warm_up=True)
    engine, capacity = build_engine(engine_config, engines)
    speculation = engine_config.speculation
    facts = ModelFacts(
        capacity.weight_bytes,
        capacity.dtype,
        capacity.quantization,
        0 if speculation is None else speculation.num_speculative_tokens,
        capacity.kv_layers,
        capacity.family,
        capacity.num_parameters,
        PoolBytes(capacity.pool_bytes, capacity.kv_bytes_per_token * capacity.limits.block_size),
    )
    names = config.served_model_name or [capacity.model_name]
    app = create_app(engine, names, config, facts=facts, replica=replica)
    return ServedApp(app, engine, capacity)
