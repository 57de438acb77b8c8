"""What /v1/quire tells of a running engine, beside what the engine knows itself."""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from quire.server.live.types import DecisionList, EngineState, RequestStory
from support.block_truth import Frame, true_cells
from support.live_server import PATIENCE, LiveServer, eventually, live_server

SECRET = "zebra"
SMALL = {"num_blocks": 24, "max_num_seqs": 4}


def get(server: LiveServer, path: str, kind: type[Any], **params: Any) -> Any:
    """An answer, which is of its kind."""
    answer = server.http.get(f"/v1/quire/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return TypeAdapter(kind).validate_json(answer.text)


@contextmanager
def busy(server: LiveServer, bodies: list[dict[str, Any]]) -> Iterator[None]:
    """All of them have come, and the engine stands still in a step."""
    server.executor.hold()
    with ThreadPoolExecutor(len(bodies)) as threads:
        futures = []
        for number, body in enumerate(bodies, 1):
            futures.append(threads.submit(lambda body=body: server.complete(**body)))
            server.step_until(lambda n=number: len(server.engine._requests) == n)
        yield
        server.executor.release()
        for future in futures:
            assert future.result(PATIENCE).status_code == 200


def held_answer(server: LiveServer, path: str, **params: Any) -> httpx.Response:
    """Asked while a step is held, answered after it."""
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(server.http.get, f"/v1/quire/{path}", params=params)
        server.step_until(answer.done)
        return answer.result()
