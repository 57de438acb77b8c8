"""Errors as clients get them, in the shape of the API of their path."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from msgspec import UNSET, UnsetType
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from quire.core.errors import (
    BusyError,
    ContextLengthError,
    EngineError,
    OverloadedError,
    QueueFullError,
    QueueTimeoutError,
    QuireError,
    RequestAbortedError,
    RequestError,
    SessionBusyError,
    TooManySessionsError,
    UnknownAdapterError,
    UnknownSessionError,
    cut,
    shown,
)
from quire.http.answers.rendering import Answer, respond
from quire.http.unknown_fields import why_not

CLIENT, SERVER = "invalid_request_error", "server_error"

_ANTHROPIC_S_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_NO_THREADS = "thread_unsupported_request"
_TOO_LONG = "exceed_context_size_error"
_LLAMA_CPP_S_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    503: "unavailable_error",
}


class Problem(NamedTuple):
    """An error as OpenAI's API has it, from which the other shapes are made.

    context: of a prompt that is too long, the tokens that it has, that it may have, and that it
    may have together with the output.
    """

    status: int
    message: str
    type: str = CLIENT
    param: str | None = None
    code: str | None = None
    context: tuple[int, int, int] | None = None


class ShapedError(Answer):
    """An error as one API has it."""

    @classmethod
    def of(cls, problem: Problem) -> Answer:
        raise NotImplementedError


class ErrorBody(Answer):
    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: int | UnsetType = UNSET
    n_ctx: int | UnsetType = UNSET


class ErrorAnswer(ShapedError):
    """Why a request could not be served; ``param`` is the field at fault."""

    error: ErrorBody

    @classmethod
    def of(cls, problem: Problem) -> ErrorAnswer:
        if problem.context is not None:  # clients that show the message alone know it by the code
            problem = problem._replace(message=f"{problem.message} ({problem.code})")
        return cls(ErrorBody(*problem[1:5]))


class BareErrorAnswer(ErrorAnswer):
    """OpenAI's where its address has no /v1, as llama.cpp's clients have it."""

    @classmethod
    def of(cls, problem: Problem) -> ErrorAnswer:
        answer = super().of(problem)
        if problem.context is not None:
            answer.error.type = _TOO_LONG
            answer.error.n_prompt_tokens, _, answer.error.n_ctx = problem.context
        return answer


class AnthropicErrorBody(Answer):
    type: str
    message: str
    details: dict[str, Any] | UnsetType = UNSET


class AnthropicErrorAnswer(ShapedError, kw_only=True):
    type: Literal["error"] = "error"
    error: AnthropicErrorBody

    @classmethod
    def of(cls, problem: Problem) -> Answer:
        kind = "invalid_request_error" if problem.status < 500 else "api_error"
        message = problem.message
        if problem.context is not None:
            tokens, most, _ = problem.context
            message = f"prompt is too long: {tokens} tokens > {most} maximum; {message}"
        kind = _ANTHROPIC_S_TYPES.get(problem.status, kind)
        body = AnthropicErrorBody(kind, message)
        if problem.code == _NO_THREADS:
            body.details = {"error_code": problem.code, "unsupported": [problem.param]}
        return cls(error=body)


class OllamaErrorAnswer(ShapedError):
    error: str

    @classmethod
    def of(cls, problem: Problem) -> Answer:
        long = "the input length exceeds the context length; "
        return cls(problem.message if problem.context is None else long + problem.message)


class LlamaCppErrorBody(Answer):
    code: int
    message: str
    type: str
    n_prompt_tokens: int | UnsetType = UNSET
    n_ctx: int | UnsetType = UNSET


class LlamaCppErrorAnswer(ShapedError):
    error: LlamaCppErrorBody

    @classmethod
    def of(cls, problem: Problem) -> Answer:
        status, message = problem.status, problem.message
        if problem.context is None:
            kind = _LLAMA_CPP_S_TYPES.get(status, CLIENT if status < 500 else SERVER)
            return cls(LlamaCppErrorBody(status, message, kind))
        tokens, _, length = problem.context
        text = f"request ({tokens} tokens) exceeds the available context size ({length} tokens)"
        return cls(LlamaCppErrorBody(status, f"{text}; {message}", _TOO_LONG, tokens, length))


_BY_PATH: Mapping[str, type[ShapedError]] = {
    "/api": OllamaErrorAnswer,
    "/v1/messages": AnthropicErrorAnswer,
    "/chat/completions": BareErrorAnswer,
    "/responses": BareErrorAnswer,
    "/completion": LlamaCppErrorAnswer,
    "/completions": LlamaCppErrorAnswer,
    "/infill": LlamaCppErrorAnswer,
    "/apply-template": LlamaCppErrorAnswer,
    "/embedding": LlamaCppErrorAnswer,
    "/embeddings": LlamaCppErrorAnswer,
    "/props": LlamaCppErrorAnswer,
    "/slots": LlamaCppErrorAnswer,
}


def shape_for(scope: Scope) -> type[ShapedError]:
    """The shape of errors on a path and what is below it."""
    path = route_path(scope)
    for above, shape in _BY_PATH.items():
        if path == above or path.startswith(above + "/"):
            return shape
    return ErrorAnswer


def route_path(scope: Scope) -> str:
    """The path below ``root_path``, which proxies may or may not have taken away."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


_MOST = 1000  # characters of a message: whatever it quotes has been cut, but may be much


class UnknownModelError(RequestError):
    """The request names a model that is not served here."""


class UnknownResponseError(RequestError):
    """A request names a response, or an item of one, that is not kept, or is somebody else's."""


class UnsupportedThreadError(RequestError):
    """A request would have its conversation kept here; clients go on by sending all of it."""


class TooManyWatchersError(OverloadedError):
    """No further client may watch all blocks, or no further question about the engine wait."""


class UnknownRequestError(RequestError):
    """A request is asked for that is not here."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {shown(request_id)} is not here, or has ended", "request_id")


class EngineUnavailableError(EngineError):
    """The engine has died or been stopped: no request can be served any more."""


class BrokenCallError(EngineError):
    """The model has begun a call of a tool that goes on as no call can."""


# Status, type and code of an error, by the first kind that it is of.
_KINDS: Sequence[tuple[type[Exception], int, str, str | None]] = (
    (UnknownModelError, 404, CLIENT, "model_not_found"),
    (UnknownAdapterError, 404, CLIENT, "model_not_found"),
    (UnknownResponseError, 404, CLIENT, "response_not_found"),
    (UnsupportedThreadError, 400, CLIENT, _NO_THREADS),
    (UnknownRequestError, 404, CLIENT, "request_not_found"),
    (UnknownSessionError, 404, CLIENT, "session_not_found"),
    (RequestAbortedError, 410, SERVER, "request_aborted"),  # clients do not ask again by themselves
    (BusyError, 409, CLIENT, "busy"),
    (SessionBusyError, 409, CLIENT, "session_busy"),
    (TooManySessionsError, 429, CLIENT, "too_many_sessions"),
    (QueueFullError, 429, "rate_limit_error", "queue_full"),
    (TooManyWatchersError, 429, "rate_limit_error", "too_many_watchers"),
    (QueueTimeoutError, 503, SERVER, "queue_timeout"),
    (ContextLengthError, 400, CLIENT, "context_length_exceeded"),
    (RequestError, 400, CLIENT, None),
    (EngineUnavailableError, 503, SERVER, "engine_unavailable"),
    (BrokenCallError, 500, SERVER, "broken_call"),
    (EngineError, 500, SERVER, None),
)


def explain(error: Exception, request_id: str = "") -> Problem:
    """What a client learns of an error."""
    for of, status, kind, code in _KINDS:
        if isinstance(error, of):
            field = error.field if isinstance(error, RequestError) else None
            context = None
            if isinstance(error, ContextLengthError):
                context = error.tokens, error.most, error.length
            return Problem(
                status, cut(str(error), _MOST), kind, field and cut(field), code, context
            )
    if isinstance(error, HTTPException):
        kind = CLIENT if error.status_code < 500 else SERVER
        return Problem(error.status_code, cut(str(error.detail), _MOST), kind)
    where = f" of request {request_id}" if request_id else ""
    return Problem(500, f"internal error; the server's log tells more{where}", SERVER)


def install_error_handlers(app: FastAPI) -> None:
    """Answer every exception that a route raises in the shape of the API of its path."""

    async def handle(request: Request, error: Exception) -> Response:
        return refusal(request.scope, error)

    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.detail == HTTPStatus(error.status_code).phrase:  # the router's own
            error = what_there_is(request)
        return await handle(request, error)

    async def unfit(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        complaint = error.errors()[0]
        name = str(complaint["loc"][-1])
        return await handle(request, RequestError(f"{name}: {complaint['msg']}", name))

    app.add_exception_handler(RequestValidationError, unfit)  # of parameters in the URL
    for kind in (QuireError, HTTPException):
        app.add_exception_handler(kind, handle)
    for status in (404, 405):
        app.add_exception_handler(status, no_route)


def refusal(scope: Scope, error: Exception) -> Response:
    """The answer to a request that has none but this error."""
    problem = explain(error)
    return respond(shape_for(scope).of(problem), problem.status, _headers(error))


def what_there_is(request: Request) -> HTTPException:
    """The error of a path or a method that no route has, with what there is in its place."""
    asked: str = request.scope["path"]  # a URL is also made of the header Host, which may lie
    path, routes = shown(asked), list(routes_of(request.app.routes))
    matching = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    methods = {method for route in matching for method in route.methods or ()}
    if methods:
        allowed = ", ".join(sorted(methods))
        text = f"{path} takes {allowed}, not {shown(request.method)}"
        return HTTPException(405, text, {"allow": allowed})
    known = [route.path for route in routes]
    close = difflib.get_close_matches(asked[:_MOST], known, n=1)
    hint = f"did you mean {close[0]}?" if close else "/docs tells what there is"
    return HTTPException(404, f"there is no {path}; {hint}")


def routes_of(found: Iterable[BaseRoute]) -> Iterator[Route]:
    """The routes of an app, and of the routers that it includes."""
    for route in found:
        if isinstance(route, Route):
            yield route
        else:  # FastAPI keeps routers that were included whole
            yield from routes_of(getattr(getattr(route, "original_router", None), "routes", ()))


def _headers(error: Exception) -> Mapping[str, str] | None:
    match error:
        case OverloadedError():
            return {"retry-after": str(math.ceil(error.retry_after))}
        case HTTPException():
            return error.headers
    return None


def first_complaint(invalid: ValidationError) -> RequestError:
    """The first of pydantic's complaints about a body."""
    error = invalid.errors(include_url=False, include_input=False)[0]
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, RequestError):  # raised by one of our validators
        return cause
    inside = error.get("ctx", {}).get("field")  # of an object that was checked as a whole
    path = _path((*error["loc"], inside) if inside else error["loc"])
    if error["type"] == "unknown":
        return RequestError(why_not(path, error["ctx"]["nearest"]), path)
    word = str(error.get("ctx", {}).get("tag", ""))  # pydantic repeats it whole
    return RequestError(f"{path}: {error['msg'].replace(word, cut(word))}", path)


def _path(location: tuple[str | int, ...]) -> str:
    """("messages", 0, "role") as messages[0].role."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{cut(part)}" for part in location)
    return cut("".join(parts).removeprefix("."))
