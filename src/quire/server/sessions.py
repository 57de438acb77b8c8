"""The streaming sessions under /v1/sessions."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response

from quire.server.completions import CompletionWording
from quire.server.reply import answer
from quire.server.service import Service
from quire.server.session_types import AppendRequest, OpenRequest, RecomputeRequest, TurnRequest
from quire.server.streaming import Json


class TurnWording(CompletionWording):
    """A completion whose prompt is what has been appended since the turn before."""

    id_prefix = "turn-"


def add_sessions(app: FastAPI, service: Service) -> None:
    """The routes under /v1/sessions."""
    path = "/v1/sessions/{session_id}"

    @app.post("/v1/sessions")
    async def open_session(request: OpenRequest) -> Json:
        service.check_model(request.model)
        session_id = f"session-{uuid.uuid4().hex}"
        await service.engine.open_session(session_id, request.cache_salt or "")
        return _card(service, session_id)

    @app.get(path)
    async def session(session_id: str) -> Json:
        events = [
            {**event._asdict(), "what": event.what.value}
            for event in service.session(session_id).events
        ]
        return {**_card(service, session_id), "events": events}

    @app.delete(path)
    async def close_session(session_id: str) -> Json:
        await service.engine.close_session(session_id)
        return {"id": session_id, "object": "session", "deleted": True}

    @app.post(f"{path}/append")
    async def append(session_id: str, request: AppendRequest) -> Json:
        await service.engine.append(session_id, request.input)
        return _card(service, session_id)

    @app.post(f"{path}/generate", response_model=None)
    async def generate(session_id: str, request: TurnRequest) -> Response:
        return await _generate(service, session_id, request)

    @app.post(f"{path}/hard_cut")
    async def hard_cut(session_id: str) -> Json:
        await service.engine.hard_cut(session_id)
        return _card(service, session_id)

    @app.post(f"{path}/recompute")
    async def recompute(session_id: str, request: RecomputeRequest) -> Json:
        await service.engine.recompute(session_id, request.last_n)
        return _card(service, session_id)


async def _generate(service: Service, session_id: str, request: TurnRequest) -> Response:
    model = request.model or service.model_names[0]
    service.check_model(model)
    service.session(session_id)
    params = request.sampling_params(service.intake.sampling_defaults)
    return await answer(
        request,
        model,
        params,
        TurnWording(request, [], service.intake.tokenizer),
        lambda request_id: service.run_turn(
            f"{request_id}-0", session_id, params, request.priority or 0, request.client
        ),
    )


def _card(service: Service, session_id: str) -> dict[str, Any]:
    """A session as it is now."""
    session = service.session(session_id)
    return {
        "id": session_id,
        "object": "session",
        "cache_epoch": session.cache_epoch,
        "num_tokens": len(session.history),
        "num_input_tokens": session.num_input,
        "busy": session.turn is not None,
    }
