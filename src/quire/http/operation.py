"""For operators: health, load, version, metrics, and profiles of the engine."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from quire.core.errors import RequestError, shown
from quire.engine.tracing import Profile
from quire.http.answers.rendering import Answer, json_response, respond
from quire.http.errors import EngineUnavailableError
from quire.http.guards.envelope import Drain
from quire.http.openapi import Responses, gives
from quire.http.service import Service

_HEALTH: Responses = {
    200: {"description": "They can."},
    503: {"description": "The server ends, or the engine is gone."},
}
_METRICS: Responses = {200: {"description": "The metrics."}}
_LONGEST = 60.0  # seconds of a profile


class ServerLoad(Answer):
    server_load: int


class Version(Answer):
    version: str


class PerfettoTrace(Answer):
    """In Chromium's Trace Event Format, as Perfetto reads it."""

    traceEvents: list[dict[str, Any]]
    displayTimeUnit: str
    otherData: dict[str, str]


_PROFILE: Responses = {
    **gives(PerfettoTrace, about="A trace for ui.perfetto.dev."),
    400: {"description": "seconds is out of its range."},
    409: {"description": "Another profile is being taken."},
}


def add_operation(app: FastAPI, service: Service, drain: Drain) -> None:
    @app.get("/v1/health", response_class=Response, responses=_HEALTH)
    @app.get("/health", response_class=Response, responses=_HEALTH)
    async def health() -> Response:
        """Whether requests can be served; nothing is in the body if they can."""
        if not service.engine.healthy:
            raise EngineUnavailableError("the engine is not running")
        return drain.refusal() if drain.begun else Response()

    @app.get("/ping", response_class=Response, responses=_HEALTH)
    @app.post("/ping", response_class=Response, responses=_HEALTH)
    async def ping() -> Response:
        """What /health tells, where SageMaker asks."""
        return await health()

    @app.get("/load", responses=gives(ServerLoad))
    async def load() -> Response:
        """How many requests are being answered."""
        return respond(ServerLoad(drain.running))

    @app.get("/version", responses=gives(Version))
    async def version() -> Response:
        """Quire's version."""
        return respond(Version(app.version))

    @app.get("/metrics", response_class=PlainTextResponse, responses=_METRICS)
    async def metrics() -> Response:
        """Counters and gauges in Prometheus's format."""
        return Response(await service.metrics.rendered(), media_type=CONTENT_TYPE_LATEST)

    @app.post("/reset_prefix_cache", response_class=Response)
    async def reset_prefix_cache() -> Response:
        """Let nobody find what has been computed until now; what runs goes on."""
        await service.in_engine(service.engine.engine.reset_prefix_cache)
        return Response()

    @app.post("/v1/quire/profile", responses=_PROFILE)
    async def profile(seconds: str = "5") -> Response:
        """What the engine does in the next seconds: steps and their parts, requests, decisions."""
        wanted, engine = _checked(seconds), service.engine.engine
        taken = await service.engine.call(lambda: Profile(engine.events, engine.clock()))
        try:
            await asyncio.sleep(wanted)
        finally:
            await service.in_engine(lambda: taken.finish(engine.states()))
        response = await json_response(lambda: PerfettoTrace(**taken.trace()), large=True)
        response.headers["content-disposition"] = 'attachment; filename="quire-profile.json"'
        return response


def _checked(seconds: str) -> float:
    try:
        wanted = float(seconds)
    except ValueError:
        wanted = 0.0
    if not 0.1 <= wanted <= _LONGEST:
        raise RequestError(
            f"seconds must be a number from 0.1 to {_LONGEST:g}, got {shown(seconds)}", "seconds"
        )
    return wanted
