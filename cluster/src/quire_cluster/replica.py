"""A replica: an engine and the app that serves it, in an actor of Ray Serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any
from uuid import uuid4

from fastapi import FastAPI
from starlette.types import Message

from quire.blocks.transfer import BlockFetcher, BlockServer, Prefiller
from quire.core.errors import EngineError
from quire.engine.async_engine import AsyncEngine
from quire.engine.config import EngineConfig
from quire.engine.engine import Engine
from quire.http.application import ServedApp, build
from quire.http.config.server import ServerConfig
from quire.text.params import SamplingParams
from quire_cluster.calls import ReplicaCall, Whole
from quire_cluster.routing import Hint
from quire_cluster.rules import ReplicaReport

logger = logging.getLogger(__name__)

_SIGN = 1.0  # seconds between two keep-alive messages


async def load_replica(
    name: str,
    engine_config: EngineConfig,
    config: ServerConfig,
    engines: int,
    prefiller: Prefiller | None = None,
) -> Replica:
    """Load a replica. engines: how many may share this machine's memory. prefiller: of a decode
    replica.
    """
    served = await asyncio.to_thread(build, engine_config, config, name, engines)
    logger.info("replica %s: %s", name, served.capacity.describe())
    transfer = served.engine.capabilities.transfer
    if isinstance(transfer, BlockFetcher):
        transfer.prefiller = prefiller
    replica = Replica(name, served, engine_config.role)
    await replica.start()
    return replica


class Replica:
    """An engine and its app, as Ray Serve, a gateway and other replicas call them."""

    def __init__(self, name: str, served: ServedApp, role: str = "both") -> None:
        self._name, self._role = name, role
        self._app: FastAPI = served.app
        self._engine: AsyncEngine = served.app.state.service.engine
        self._num_reports = 0
        self._life = AsyncExitStack()
        self._life.callback(served.engine.close)

    async def start(self) -> None:
        """Run the engine. Called in the event loop that will use it."""
        await self._life.enter_async_context(self._app.router.lifespan_context(self._app))

    async def stop(self) -> None:
        await self._life.aclose()

    async def answer(self, call: ReplicaCall, hint: Hint) -> AsyncGenerator[list[Message], None]:
        """The app's messages as they come; an empty one first, which says that the request has
        arrived.

        hint: for the router that chose this replica.
        """
        yield []
        answer = _AppAnswer(self._app, call)
        try:
            while messages := await answer.take():
                yield messages
        finally:
            await answer.cancel()

    async def whole_answer(self, call: ReplicaCall) -> Whole:
        messages: list[Message] = []
        answer = _AppAnswer(self._app, call)
        while taken := await answer.take():
            messages += taken
        body = b"".join(message.get("body", b"") for message in messages)
        return Whole(self._name, messages[0]["status"], body, self._role)

    async def prefill(
        self, prompt: Mapping[str, Any], hint: Hint
    ) -> AsyncGenerator[tuple[str, int] | None, None]:
        """Where the blocks of a prompt can be fetched; until then, keep-alive messages."""
        work = asyncio.create_task(self._prefill(prompt))
        try:
            while not work.done():
                yield None
                await asyncio.wait([work], timeout=_SIGN)
            yield await work
        finally:
            work.cancel()

    async def _prefill(self, prompt: Mapping[str, Any]) -> tuple[str, int]:
        engine, params = self._engine.engine, SamplingParams(max_tokens=1, temperature=0.0)
        server = engine.capabilities.transfer
        if not isinstance(server, BlockServer):
            raise EngineError("this replica hands no blocks over")
        name = f"prefill-{uuid4().hex}"
        async with aclosing(self._engine.generate({name: prompt}, params)) as computed:
            async for _ in computed:
                pass
        await self._engine.call(engine.put_away)
        return server.host, server.port

    def check_health(self) -> None:
        """EngineError if requests cannot be served."""
        if not self._engine.healthy:
            raise EngineError("the engine is not running")

    async def report(self) -> ReplicaReport:
        """The engine's report, made between two steps."""
        self._num_reports += 1
        return await self._engine.call(partial(report_of, self._engine.engine, self._num_reports))


def report_of(engine: Engine, number: int) -> ReplicaReport:
    """The work and the room that an engine has."""
    usage, queue, stats = engine.scheduler.allocator.usage(), engine.scheduler.queue, engine.stats
    branches = (
        branch for group in (*queue.running, *queue.waiting) for branch in group.branches[:1]
    )
    backlog = sum(max(0, each.num_prompt_tokens - each.num_computed) for each in branches)
    rate = stats.num_tokens / stats.busy_seconds if stats.busy_seconds else 0.0
    wait, transfer = engine.waiting_room.predicted_wait, engine.capabilities.transfer
    if isinstance(transfer, BlockServer) and rate:  # only prompts have to wait
        wait = max(wait, backlog / rate)
    return ReplicaReport(number, usage.capacity, usage.free + usage.cached, backlog, wait, rate)


class _AppAnswer:
    """An app at work on one request, and its messages since the last ``take``."""

    def __init__(self, app: FastAPI, call: ReplicaCall) -> None:
        self._body: bytes | None = call.body
        self._said: list[Message] = []
        self._news = asyncio.Event()
        self._work = asyncio.create_task(app(dict(call.scope), self._receive, self._send))
        self._work.add_done_callback(lambda work: self._news.set())

    async def take(self) -> list[Message]:
        """One message at least, or none at the end. Raises what the app raises."""
        await self._news.wait()
        self._news.clear()
        said, self._said = self._said, []
        if self._work.done():
            self._news.set()  # for the next call
            if not said:
                await self._work
        return said

    async def cancel(self) -> None:
        """End the app's work if it has not ended, as when its client has left."""
        self._work.cancel()
        await asyncio.wait([self._work])

    async def _receive(self) -> Message:
        if self._body is None:
            await asyncio.Event().wait()  # a client that leaves is reported by ``cancel``
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, message: Message) -> None:
        self._said.append(message)
        self._news.set()
