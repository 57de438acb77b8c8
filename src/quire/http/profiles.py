"""Profiles of the engine, on demand."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response

from quire.core.errors import RequestError
from quire.engine.profiling import begin_profile, end_profile
from quire.http.answers.rendering import json_response
from quire.http.description.answer_types import ErrorAnswer, PerfettoTrace
from quire.http.service import Service

_LONGEST = 60.0
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "A trace for ui.perfetto.dev.", "model": PerfettoTrace},
    400: {"description": "seconds is out of its range.", "model": ErrorAnswer},
    409: {"description": "Another profile is being taken.", "model": ErrorAnswer},
}


def add_profiles(app: FastAPI, service: Service) -> None:
    @app.post("/v1/quire/profile", responses=_ANSWERS)
    async def profile(seconds: str = "5") -> Response:
        """What the engine does in the next seconds: steps and their parts, requests, decisions."""
        wanted, engine = _checked(seconds), service.engine.engine
        taken = await service.engine.call(partial(begin_profile, engine))
        try:
            await asyncio.sleep(wanted)
        finally:
            await service.in_engine(end_profile, engine, taken)
        response = await json_response(taken.trace, large=True)
        response.headers["content-disposition"] = 'attachment; filename="quire-profile.json"'
        return response


def _checked(seconds: str) -> float:
    try:
        wanted = float(seconds)
    except ValueError:
        wanted = 0.0
    if not 0.1 <= wanted <= _LONGEST:
        raise RequestError(f"seconds must be a number from 0.1 to {_LONGEST:g}", "seconds")
    return wanted
