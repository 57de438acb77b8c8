"""What /docs and /openapi.json tell: bodies, which the routes read for themselves, and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from quire.http.answers.streaming import DATA_TO_DONE, LINES, Framing
from quire.http.config.server import ServerConfig
from quire.http.description.answer_types import ErrorAnswer
from quire.http.description.bodies import AsTaken, with_what_passes
from quire.http.description.docs_page import page
from quire.http.doors.answers import AnthropicErrorAnswer, LlamaCppErrorAnswer, OllamaErrorAnswer
from quire.http.error_shapes import (
    ErrorShape,
    in_anthropic_s_shape,
    in_llama_cpp_s_shape,
    in_ollama_s_shape,
    in_openai_s_shape,
    shape_for,
)
from quire.http.errors import routes_of
from quire.http.guards.keys import is_open

_SCHEMAS = "#/components/schemas/"
_ABOUT = """OpenAI's API, with vLLM's extra fields, served from paged memory.

A field that is not understood is refused by name; its neutral value passes. `null` means that a
field is absent. Errors have one shape, and every answer bears an `x-request-id`: the request's own,
or a new one.
"""
_ERRORS = {
    400: "The request cannot be served; the message names the field and what is allowed.",
    401: "The API key is missing or wrong.",
    404: "There is no such model, session or path.",
    408: "The body was too slow.",
    409: "The session has a turn under way.",
    410: "Whoever runs the server has ended the request.",
    413: "The body is too large.",
    415: "The body is packed in a way that is not understood.",
    429: "Too many requests wait, or sessions are open; `Retry-After` says when to ask again.",
    500: "The step that computed the request failed, or something nobody has foreseen.",
    503: "Waited too long, too many large bodies, the server ends, or the engine is gone.",
}
_ERROR_TYPES: Mapping[ErrorShape, type[BaseModel]] = {
    in_openai_s_shape: ErrorAnswer,
    in_anthropic_s_shape: AnthropicErrorAnswer,
    in_ollama_s_shape: OllamaErrorAnswer,
    in_llama_cpp_s_shape: LlamaCppErrorAnswer,
}
_OF_BODIES = (400, 404, 408, 410, 413, 415, 429)
_OF_PARAMETERS = (400,)
_OF_ALL = (500, 503)


class _Takes(dict[str, Any]):
    """``openapi_extra`` of a route, and the type of its body."""

    def __init__(self, kind: type[BaseModel]) -> None:
        content = {"application/json": {"schema": {"$ref": _SCHEMAS + kind.__name__}}}
        super().__init__(requestBody={"required": True, "content": content})
        self.kind = kind


def takes(kind: type[BaseModel]) -> dict[str, Any]:
    """What a route's documentation says of its body (``openapi_extra``)."""
    return _Takes(kind)


def gives(
    answer: type[Any],
    chunk: type[BaseModel] | None = None,
    *errors: int,
    framing: Framing = DATA_TO_DONE,
) -> dict[int | str, dict[str, Any]]:
    """What it says of its answers (``responses``).

    chunk: of a stream, framed so; each event's data, or each line, are one.
    errors: statuses beside those that every body may be answered with.
    """
    told: dict[int | str, dict[str, Any]] = {
        200: {"description": "The answer.", "model": answer},
        **{status: {"description": _ERRORS[status], "model": ErrorAnswer} for status in errors},
    }
    if chunk is not None:
        told[200]["content"] = {framing.media_type: {"schema": {
            "type": "string", "description": _about_stream(chunk, framing),
            "x-event": {"$ref": _SCHEMAS + chunk.__name__},
        }}}  # fmt: skip
    return told


def _about_stream(chunk: type[BaseModel], framing: Framing) -> str:
    if framing is LINES:
        return f"Unless `stream: false`, lines. Each is a {chunk.__name__}."
    told = f"With `stream: true`, server-sent events. The data of each are a {chunk.__name__}"
    return told + ("; the last are `[DONE]`." if framing.end else ".")


def describe(app: FastAPI, config: ServerConfig, kinds: Iterable[type[BaseModel]]) -> None:
    """Make the app's description whole, and serve it: /openapi.json and, of it, /docs.

    kinds: types that only streams give.
    """
    routes_only, one_at_a_time = app.openapi, Lock()
    app.description = _ABOUT

    def described() -> dict[str, Any]:
        with one_at_a_time:
            if app.openapi_schema is None:
                _complete(routes_only(), app, config, kinds)
        return app.openapi_schema or {}

    app.openapi = described  # type: ignore[method-assign]
    if not config.disable_fastapi_docs:
        _serve(app)


def _serve(app: FastAPI) -> None:
    """In a thread: to make it takes long enough for others to notice."""

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return await asyncio.to_thread(lambda: JSONResponse(app.openapi()))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return await asyncio.to_thread(lambda: HTMLResponse(page(app.openapi())))


def _complete(
    document: dict[str, Any], app: FastAPI, config: ServerConfig, kinds: Iterable[type[BaseModel]]
) -> None:
    _add_types(document, app, kinds)
    for path, operations in document["paths"].items():
        secured = bool(config.api_key) and not is_open(path, config)
        for operation in operations.values():
            _complete_operation(operation, _error_type(path), secured=secured)
    if config.api_key:
        scheme = {"type": "http", "scheme": "bearer", "description": "An API key of the server's."}
        document["components"]["securitySchemes"] = {"key": scheme}
        document["security"] = [{"key": []}]
    if config.root_path:
        document["servers"] = [{"url": config.root_path}]


def _add_types(document: dict[str, Any], app: FastAPI, kinds: Iterable[type[BaseModel]]) -> None:
    modes: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = []
    modes += [(kind, "validation") for kind in _bodies(app)]
    answers: list[type[BaseModel]] = [*_ERROR_TYPES.values(), *kinds]
    modes += [(kind, "serialization") for kind in answers]
    template = _SCHEMAS + "{model}"
    _, found = models_json_schema(modes, ref_template=template, schema_generator=AsTaken)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(found["$defs"])
    for kind in _bodies(app):
        schemas[kind.__name__] = with_what_passes(schemas[kind.__name__])
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's, which nobody gets
        schemas.pop(unused, None)


def _bodies(app: FastAPI) -> Iterator[type[BaseModel]]:
    for route in routes_of(app.routes):
        if isinstance(route, APIRoute) and isinstance(route.openapi_extra, _Takes):
            yield route.openapi_extra.kind


def _error_type(path: str) -> type[BaseModel]:
    return _ERROR_TYPES[shape_for({"path": path})]


def _complete_operation(
    operation: dict[str, Any], error: type[BaseModel], *, secured: bool
) -> None:
    """Every status that occurs, in the shape in which it does."""
    responses = operation["responses"]
    responses.pop("422", None)
    for told in responses.get("200", {}).get("content", {}).values():
        told["schema"] = told.get("schema") or {"type": "object"}  # in another API's own shape
    statuses = [*_OF_ALL, *([401] if secured else [])]
    if "requestBody" in operation:
        statuses += _OF_BODIES
    if "parameters" in operation:
        statuses += _OF_PARAMETERS
    content = {"application/json": {"schema": {"$ref": _SCHEMAS + error.__name__}}}
    for status in statuses:
        responses.setdefault(str(status), {"description": _ERRORS[status], "content": content})
    operation["responses"] = dict(sorted(responses.items()))
    if not secured:
        operation["security"] = []
