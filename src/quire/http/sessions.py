"""The streaming sessions under /v1/sessions."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response

from quire.capabilities.sessions import OpenSession
from quire.core.protocol import SoftCut
from quire.http.answers.rendering import Answer, respond
from quire.http.body_fields import Ids, Name, Strict, between, expecting
from quire.http.openai.answers import Completion, CompletionChunk, answer
from quire.http.openai.completions import CompletionWording
from quire.http.openai.requests import TurnRequest
from quire.http.openapi import body_route, gives
from quire.http.service import Caller, Service


class OpenRequest(Strict):
    """The body of POST /v1/sessions."""

    model: str | None = None
    cache_salt: Name | None = None
    user: Name | None = None  # whose share it counts against, where there are not several keys
    # Tokens that it goes on with, beside sinks and input, when a turn finds its ring full.
    recompute_last_n: Annotated[int, between(1, 2**31 - 1)] | None = None


class AppendRequest(Strict):
    """The body of POST /v1/sessions/{id}/append."""

    input: Annotated[str | Ids, expecting("a string or a list of token ids")]


class SoftCutRequest(Strict):
    """The body of POST /v1/sessions/{id}/soft_cut."""

    # JSON has no infinity.
    bias: Annotated[float | Literal["-inf"], expecting('a number that is at most 0, or "-inf"')]
    fade: int = 0  # tokens


class RecomputeRequest(Strict):
    """The body of POST /v1/sessions/{id}/recompute."""

    last_n: Annotated[int, between(1, 2**31 - 1)]


class SoftCutCard(Answer):
    position: int
    bias: float | Literal["-inf"]
    fade: int

    @classmethod
    def of(cls, cut: SoftCut) -> SoftCutCard:
        return cls(cut.position, "-inf" if cut.bias == -math.inf else cut.bias, cut.fade)


class SessionCard(Answer, kw_only=True):
    """A session as it is now."""

    id: str
    object: Literal["session"] = "session"
    cache_epoch: int
    num_tokens: int
    num_input_tokens: int
    busy: bool
    soft_cuts: list[SoftCutCard]

    @classmethod
    def of(cls, session: OpenSession, **more: Any) -> SessionCard:
        return cls(
            id=session.session_id,
            cache_epoch=session.cache_epoch,
            num_tokens=len(session.history),
            num_input_tokens=session.num_input,
            busy=session.turn is not None,
            soft_cuts=[*map(SoftCutCard.of, session.soft_cuts)],
            **more,
        )


class SessionWithEvents(SessionCard, kw_only=True):
    events: list[dict[str, Any]]


class SessionList(Answer, kw_only=True):
    object: Literal["list"] = "list"
    data: list[SessionCard]


class ClosedSession(Answer):
    id: str
    object: Literal["session"] = "session"
    deleted: Literal[True] = True


class TurnWording(CompletionWording):
    """A completion whose prompt is what has been appended since the turn before."""

    id_prefix = "turn-"


def add_sessions(app: FastAPI, service: Service) -> None:
    """The routes under /v1/sessions."""

    @body_route(app, service, OpenRequest, gives(SessionCard), "/v1/sessions")
    async def open_session(http: Request, request: OpenRequest) -> Response:
        """Open a streaming session, a text that lives across requests."""
        adapter = service.input_processor.adapter(service.check_model(request.model).adapter)
        session_id, caller = f"session-{service.new_id()}", service.caller(http)
        salt, client = caller.cache_salt(request.cache_salt), caller.client(request.user)
        last_n = request.recompute_last_n
        await service.in_engine(service.sessions.open, session_id, salt, client, adapter, last_n)
        return _card(service, session_id)

    @app.get("/v1/sessions", responses=gives(SessionList))
    async def list_sessions(http: Request, user: str | None = None) -> Response:
        """The client's open sessions."""
        client = service.caller(http).client(user)
        own = [one for one in service.sessions.all() if one.client == client]
        return respond(SessionList(data=[*map(SessionCard.of, own)]))

    app.include_router(_one_session(service))


def _one_session(service: Service) -> APIRouter:
    """What may be done with a session, by those to whom it is open: to others there is none."""

    async def check_caller(session_id: str, http: Request) -> None:
        session = service.sessions.get(session_id)
        if not service.caller(http).may_use(session.client):
            raise service.sessions.unknown(session_id)

    router = APIRouter(prefix="/v1/sessions/{session_id}", dependencies=[Depends(check_caller)])

    @router.get("", responses=gives(SessionWithEvents, None, 404))
    async def session(session_id: str) -> Response:
        """A session as it is now, with its latest events."""
        session = service.sessions.get(session_id)
        events = [event._asdict() for event in session.events]
        return respond(SessionWithEvents.of(session, events=events))

    @router.delete("", responses=gives(ClosedSession, None, 404, 409))
    async def close_session(session_id: str) -> Response:
        """Close a session; its blocks are free."""
        await service.in_engine(service.sessions.end, session_id)
        return respond(ClosedSession(session_id))

    card = gives(SessionCard, None, 404, 409)

    @body_route(router, service, AppendRequest, card, "/append")
    async def append(http: Request, request: AppendRequest) -> Response:
        """Add what the next turn computes and goes on from."""
        session_id = http.path_params["session_id"]
        await service.engine.append_to_session(session_id, request.input)
        return _card(service, session_id)

    turn = gives(Completion, CompletionChunk, 404, 409)

    @body_route(router, service, TurnRequest, turn, "/generate")
    async def generate(http: Request, request: TurnRequest) -> Response:
        """One turn, answered like a completion."""
        session_id = http.path_params["session_id"]
        return await _generate(service, service.caller(http), session_id, request)

    _add_cuts(router, service)
    return router


def _add_cuts(router: APIRouter, service: Service) -> None:
    """The verbs by which a session lets go of what came so far."""
    card = gives(SessionCard, None, 404, 409)

    @router.post("/hard_cut", responses=card)
    async def hard_cut(session_id: str) -> Response:
        """Empty cache and history."""
        await service.in_engine(service.sessions.hard_cut, session_id)
        return _card(service, session_id)

    @body_route(router, service, SoftCutRequest, card, "/soft_cut")
    async def soft_cut(http: Request, request: SoftCutRequest) -> Response:
        """Let what came so far count for less and less in what comes."""
        session_id = http.path_params["session_id"]
        bias, fade = float(request.bias), request.fade
        await service.in_engine(service.sessions.soft_cut, session_id, bias, fade)
        return _card(service, session_id)

    @body_route(router, service, RecomputeRequest, card, "/recompute")
    async def recompute(http: Request, request: RecomputeRequest) -> Response:
        """Let the sinks and the last tokens be the history, from position 0."""
        session_id = http.path_params["session_id"]
        await service.in_engine(service.sessions.recompute, session_id, request.last_n)
        return _card(service, session_id)


async def _generate(
    service: Service, caller: Caller, session_id: str, request: TurnRequest
) -> Response:
    model = service.check_model_of(service.sessions.get(session_id), request.model)
    params = request.sampling_params(service.input_processor.sampling_defaults)
    service.check_answer(params)
    return await answer(
        service,
        caller,
        request,
        model,
        params,
        TurnWording(request, [], service.input_processor.tokenizer),
        lambda request_id, *, whole: service.run_turn(
            f"{request_id}-0",
            session_id,
            params,
            request.priority or 0,
            request.field_names,
            request.origin(caller),
            whole=whole,
        ),
    )


def _card(service: Service, session_id: str) -> Response:
    return respond(SessionCard.of(service.sessions.get(session_id)))
