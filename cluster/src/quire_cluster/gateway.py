"""The gateway: receives requests as a server does, and forwards them to replicas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.core.errors import QuireError
from quire.http.answers.streaming import last_words
from quire.http.config.server import ServerConfig
from quire.http.errors import explain, refusal, route_path
from quire.http.guards.bodies import LARGEST_BODY, Bodies
from quire.http.guards.envelope import (
    REQUEST_ID,
    CancelOnDisconnect,
    CloseUnread,
    Drain,
    Envelope,
    RefuseWhileDraining,
)
from quire.http.guards.keys import KEY_NAME, RequireApiKey
from quire_cluster.calls import ReplicaCall, Whole, merge_metrics
from quire_cluster.routing import Hint, hint_of

_SENT = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string",
         "root_path", "client", "server")  # fmt: skip
_ENVELOPE_S = {b"x-request-id", b"vary"}  # headers that the gateway itself sets
_ORIGINS_S = b"access-control-"
_SMALL = 2**16  # bytes: parsed in the event loop, since a thread costs more


class Replicas(Protocol):
    """The replicas that answer."""

    def ask(self, call: ReplicaCall, hint: Hint) -> AsyncGenerator[list[Message], None]:
        """Messages of one replica's answer as they arrive. QuireError: none can answer, or it is
        gone.
        """
        ...

    async def ask_all(self, call: ReplicaCall) -> list[Whole]: ...


def make_gateway(replicas: Replicas, config: ServerConfig, adapters: frozenset[str]) -> Gateway:
    """adapters: their names, which salt the prefix cache."""
    return Gateway(_Relay(replicas, config, adapters), config)


class Gateway:
    """The checks between the network and a server's routes, around a relay to the replicas."""

    def __init__(self, relay: _Relay, config: ServerConfig) -> None:
        self.drain = Drain()
        app: ASGIApp = RefuseWhileDraining(relay, self.drain)
        app = _Health(app, self.drain)
        if config.api_key:
            app = RequireApiKey(app, config)
        self._app = Envelope(CancelOnDisconnect(CloseUnread(app)), config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await _live(receive, send)
        if scope["type"] == "http":
            await self._app(scope, receive, partial(_unnamed, send))


async def _unnamed(send: Send, message: Message) -> None:
    """Without the request id, which Ray's proxy sets itself."""
    if message["type"] == "http.response.start":
        headers = [one for one in message["headers"] if one[0] != b"x-request-id"]
        message = {**message, "headers": headers}
    await send(message)


class _Health:
    """Takes the server out of load balancers while it drains."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = route_path(scope)
        refused = self._drain.begun and asked in ("/health", "/ping")
        await (self._drain.refusal() if refused else self._app)(scope, receive, send)


class _Relay:
    """Sends requests to replicas, and their answers back."""

    def __init__(self, replicas: Replicas, config: ServerConfig, adapters: frozenset[str]) -> None:
        self._replicas = replicas
        self._bodies = Bodies(config, LARGEST_BODY)
        self._adapters = adapters
        self._by_all: Mapping[tuple[str, str], Callable[[list[Whole]], Response]] = {
            ("GET", "/metrics"): _metrics,
            ("GET", "/v1/sessions"): _lists,
            ("GET", "/load"): _sums,
            ("POST", "/reset_prefix_cache"): _nothing_said,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _PassedAnswer(scope, send)
        try:
            async with self._bodies.whole(Request(scope, receive)) as body:
                call = ReplicaCall(_sendable(scope), bytes(body))
            join = self._by_all.get((scope["method"], route_path(scope)))
            if join is not None:
                answers = await self._replicas.ask_all(call)
                response = await asyncio.to_thread(_joined, answers, join)
                return await response(scope, receive, send)
            async with aclosing(self._replicas.ask(call, await self._hint(scope, call))) as said:
                async for messages in said:
                    await answer.pass_on(messages)
        except (QuireError, HTTPException) as error:
            await answer.fail(error)

    async def _hint(self, scope: Scope, call: ReplicaCall) -> Hint:
        look = partial(self._look, route_path(scope), call.body, scope["state"].get(KEY_NAME, ""))
        return look() if len(call.body) <= _SMALL else await self._bodies.apart(look)

    def _look(self, path: str, content: bytes, key: str) -> Hint:
        """The facts in a body by which it is routed; a body that is not JSON has none, and the
        replica refuses it.
        """
        try:
            body = from_json(content) if content else {}
        except ValueError:
            body = {}
        if not isinstance(body, dict):
            body = {}
        model = body.get("model")
        adapter = model if isinstance(model, str) and model in self._adapters else ""
        return hint_of(path, body, f"{key}\0{adapter}")


class _PassedAnswer:
    """An answer that is passed on, also when its replica is gone."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._media_type: str | None = None  # after its beginning

    async def pass_on(self, messages: list[Message]) -> None:
        for message in messages:
            if message["type"] == "http.response.start":
                headers = [one for one in message["headers"] if not _is_envelope_s(one[0])]
                message = {**message, "headers": headers}
                self._media_type = dict(headers).get(b"content-type", b"").decode("latin-1")
            await self._send(message)

    async def fail(self, error: Exception) -> None:
        if self._media_type is None:
            return await refusal(self._scope, error)(self._scope, _nothing, self._send)
        words = last_words(self._scope, self._media_type, explain(error))
        if words is None:
            raise error  # so that the connection breaks
        await self._send({"type": "http.response.body", "body": words})


def _sendable(scope: Scope) -> dict[str, Any]:
    """The scope as another process can receive it, with the request's id here."""
    own_id = scope["state"][REQUEST_ID].encode()
    headers = [one for one in scope["headers"] if one[0] != b"x-request-id"]
    told = {name: scope[name] for name in _SENT if name in scope}
    return {**told, "asgi": {"version": "3.0"}, "headers": [*headers, (b"x-request-id", own_id)]}


def _is_envelope_s(name: bytes) -> bool:
    return name in _ENVELOPE_S or name.startswith(_ORIGINS_S)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _live(receive: Receive, send: Send) -> None:
    """The app's lifespan: the gateway has nothing to start or end."""
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


# -- answers of all replicas ---------------------------------------------------------------------


def _joined(answers: list[Whole], join: Callable[[list[Whole]], Response]) -> Response:
    refused = next((one for one in answers if one.status != 200), None)
    if refused is None:
        return join(answers)
    return Response(refused.body, refused.status, media_type="application/json")


def _metrics(answers: list[Whole]) -> Response:
    return Response(merge_metrics(answers), media_type=CONTENT_TYPE_LATEST)


def _nothing_said(answers: list[Whole]) -> Response:
    return Response()


def _lists(answers: list[Whole]) -> Response:
    data = [item for one in answers for item in json.loads(one.body)["data"]]
    return JSONResponse({"object": "list", "data": data})


def _sums(answers: list[Whole]) -> Response:
    return JSONResponse(
        {"server_load": sum(json.loads(one.body)["server_load"] for one in answers)}
    )
