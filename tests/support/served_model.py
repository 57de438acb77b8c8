"""A real engine behind the real server, and OpenAI's own client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from openai import OpenAI

from quire.engine.assembly import build_engine
from quire.engine.config import EngineConfig
from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from quire.http.serving import Server


@contextmanager
def served_model(*, server: Mapping[str, Any] = {}, **options: Any) -> Iterator[OpenAI]:
    """options: of the engine, the demonstration model's unless they say otherwise.

    server: settings of its own.
    """
    engine, capacity = build_engine(EngineConfig.create(options))
    config = ServerConfig(host="127.0.0.1", port=0, **server)
    running = Server(create_app(engine, [capacity.model_name], config), config)
    thread = threading.Thread(target=running.run)
    thread.start()
    deadline = time.monotonic() + 30
    while not running.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with OpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key="none") as client:
        yield client
    running.should_exit = True
    thread.join(30)
    usage = engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity, "leaked blocks"
