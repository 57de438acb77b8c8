"""Routes as /docs and /openapi.json describe them: the bodies that they take, and their answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from inspect import cleandoc
from threading import Lock
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core.core_schema import ModelSchema

from quire.http.answers.rendering import Answer
from quire.http.answers.streaming import DATA_TO_DONE, LINES, Framing
from quire.http.body_fields import Strict
from quire.http.config.server import ServerConfig
from quire.http.errors import ShapedError, routes_of, shape_for
from quire.http.guards.bodies import Body, Handler
from quire.http.guards.keys import is_open
from quire.http.service import Service
from quire.http.unknown_fields import as_patterns, passing_schemas

Responses = dict[int | str, dict[str, Any]]
"""Answers of a route by status, as FastAPI describes them."""

_TEMPLATE = "#/components/schemas/{name}"
_ABOUT = """OpenAI's API, with vLLM's extra fields, served from paged memory.

A field that is not understood is refused by name; its neutral value passes, and what says nothing
about the text is left out with a warning. `null` means that a field is absent. Errors have one
shape, and every answer bears an `x-request-id`: the request's own, or a new one.
"""
_ERRORS = {
    400: "The request cannot be served; the message names the field and what is allowed.",
    401: "The API key is missing or wrong.",
    403: "The server answers this machine only, and a web page of another site has asked.",
    404: "There is no such model, session or path.",
    408: "The body was too slow.",
    409: "The session has a turn under way.",
    410: "An operator of the server has ended the request.",
    413: "The body is too large.",
    415: "The body is packed in a way that is not understood.",
    429: "Too many requests wait, or sessions are open; `Retry-After` says when to ask again.",
    500: "The step that computed the request failed, or the server has a fault.",
    503: "Waited too long, too many large bodies, the server ends, or the engine is gone.",
}
_OF_BODIES = (400, 404, 408, 410, 413, 415, 429)
_OF_PARAMETERS = (400,)
_OF_ALL = (500, 503)
_OF_FIELD = ("title", "description", "default", "examples")  # of a field, not of its values


class _Takes(dict[str, Any]):
    """``openapi_extra`` of a route, and the type of its body."""

    def __init__(self, kind: type[BaseModel]) -> None:
        super().__init__(requestBody={"required": True, "content": _json(_reference(kind))})
        self.kind = kind


class _Of(dict[str, Any]):
    """The schema of what is one of some types, and the types."""

    def __init__(self, *kinds: Any) -> None:
        schemas, _ = msgspec.json.schema_components(kinds, ref_template=_TEMPLATE)
        super().__init__(schemas[0] if len(kinds) == 1 else {"anyOf": [*schemas]})
        self.kinds = kinds


def body_route(
    router: APIRouter | FastAPI,
    service: Service,
    kind: type[Body],
    answers: Responses,
    *paths: str,
    response_class: type[Response] = JSONResponse,
    from_tools: bool = False,
) -> Callable[[Handler[Body]], None]:
    """Have a function answer the bodies of one type that are posted to some paths.

    It gets a body read whole and checked, and is documented by its docstring, by the body's type
    and by what it ``gives``. from_tools: see ``Bodies.parse``.
    """

    def add(handle: Handler[Body]) -> None:
        route = service.bodies.route(kind, handle, from_tools=from_tools)
        for path in reversed(paths):
            router.post(
                path,
                openapi_extra=_Takes(kind),
                responses=answers,
                response_class=response_class,
            )(route)

    return add


def gives(
    answer: Any,
    chunk: type[Answer] | tuple[type[Answer], ...] | None = None,
    *errors: int,
    framing: Framing = DATA_TO_DONE,
    about: str = "The answer.",
) -> Responses:
    """What a route says of its answers (``responses``).

    answer: its type, or a tuple of those that it may have. chunk: those of a stream, framed so;
    each event's data, or each line, are one. errors: statuses beside those that every body may be
    answered with.
    """
    content = _json(_Of(*_several(answer)))
    if chunk is not None:
        chunks = _several(chunk)
        about_stream = _about_stream(" or a ".join(one.__name__ for one in chunks), framing)
        content[framing.media_type] = {
            "schema": {"type": "string", "description": about_stream, "x-event": _Of(*chunks)}
        }
    answers: Responses = {200: {"description": about, "content": content}}
    return answers | {status: {"description": _ERRORS[status]} for status in errors}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _reference(kind: type) -> dict[str, str]:
    return {"$ref": _TEMPLATE.format(name=kind.__name__)}


def _several(kinds: Any) -> tuple[Any, ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)


def _about_stream(kind: str, framing: Framing) -> str:
    if framing is LINES:
        return f"Unless `stream: false`, lines. Each is a {kind}."
    about = f"With `stream: true`, server-sent events. The data of each are a {kind}"
    return about + ("; the last are `[DONE]`." if framing.end else ".")


def describe(app: FastAPI, config: ServerConfig) -> None:
    """Make the app's description whole, and serve it: /openapi.json and, of it, /docs."""
    routes_only, one_at_a_time = app.openapi, Lock()
    app.description = _ABOUT

    def described() -> dict[str, Any]:
        with one_at_a_time:
            if app.openapi_schema is None:
                _complete(routes_only(), app, config)
        return app.openapi_schema or {}

    app.openapi = described  # type: ignore[method-assign]
    if not config.disable_fastapi_docs:
        _serve(app)


def _serve(app: FastAPI) -> None:
    """Serve it from a thread, since it takes long to make."""

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return await asyncio.to_thread(lambda: JSONResponse(app.openapi()))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return await asyncio.to_thread(lambda: HTMLResponse(page(app.openapi())))


def _complete(document: dict[str, Any], app: FastAPI, config: ServerConfig) -> None:
    errors = [shape_for({"path": path}) for path in document["paths"]]
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.clear()  # FastAPI's own, which nobody gets
    bodies = _bodies(app, strict=config.strict_fields)
    schemas.update(bodies, **schemas_of([*errors, *_given(app)]))
    for path, operations in document["paths"].items():
        secured = bool(config.api_key) and not is_open(path, config)
        private = config.is_for_this_machine
        for operation in operations.values():
            _complete_operation(
                operation, shape_for({"path": path}), secured=secured, private=private
            )
    if config.api_key:
        scheme = {"type": "http", "scheme": "bearer", "description": "An API key of the server's."}
        document["components"]["securitySchemes"] = {"key": scheme}
        document["security"] = [{"key": []}]
    if config.root_path:
        document["servers"] = [{"url": config.root_path}]


def _bodies(app: FastAPI, *, strict: bool) -> dict[str, Any]:
    """The schemas of what routes take, and of what is in it, by their names."""
    extras = [route.openapi_extra for route in _api_routes(app)]
    kinds = {extra.kind for extra in extras if isinstance(extra, _Takes)}
    modes: list[tuple[type[BaseModel], Literal["validation"]]] = [
        (kind, "validation") for kind in sorted(kinds, key=lambda kind: kind.__name__)
    ]
    template = _TEMPLATE.replace("{name}", "{model}")
    _, found = models_json_schema(modes, ref_template=template, schema_generator=AsTaken)
    schemas: dict[str, Any] = found["$defs"]
    taken = {
        kind.__name__: with_what_passes(schemas[kind.__name__], strict=strict) for kind in kinds
    }
    return {**schemas, **taken}


def _given(app: FastAPI) -> list[Any]:
    """The types of their answers."""
    answers = (response for route in _api_routes(app) for response in route.responses.values())
    contents = (content for one in answers for content in one.get("content", {}).values())
    schemas = [content["schema"] for content in contents]
    schemas += [schema["x-event"] for schema in schemas if "x-event" in schema]
    return [kind for one in schemas if isinstance(one, _Of) for kind in one.kinds]


def schemas_of(kinds: Iterable[Any]) -> dict[str, Any]:
    """The schemas of answers of these types, and of what is in them, by their names."""
    _, found = msgspec.json.schema_components(kinds, ref_template=_TEMPLATE)
    return {name: _as_given(schema) for name, schema in found.items()}


def _as_given(schema: dict[str, Any]) -> dict[str, Any]:
    """What has a default is always there; only what is ``UNSET`` is left out."""
    fields, needed = schema.get("properties", {}), schema.get("required", ())
    always = [name for name, field in fields.items() if name in needed or "default" in field]
    for field in fields.values():
        field.pop("default", None)
    about = {"description": cleandoc(schema["description"])} if "description" in schema else {}
    return {**schema, **about, **({"required": always} if always else {})}


def _api_routes(app: FastAPI) -> Iterator[APIRoute]:
    return (route for route in routes_of(app.routes) if isinstance(route, APIRoute))


def _complete_operation(
    operation: dict[str, Any], error: type[ShapedError], *, secured: bool, private: bool
) -> None:
    """Add every status that occurs, in its shape."""
    responses = operation["responses"]
    responses.pop("422", None)
    for content in responses.get("200", {}).get("content", {}).values():
        content["schema"] = content.get("schema") or {"type": "object"}  # another API's
    statuses = [*_OF_ALL, *([401] if secured else []), *([403] if private else [])]
    if "requestBody" in operation:
        statuses += _OF_BODIES
    if "parameters" in operation:
        statuses += _OF_PARAMETERS
    for status in statuses:
        responses.setdefault(str(status), {"description": _ERRORS[status]})
    for status, response in responses.items():
        if int(status) >= 400:
            response.setdefault("content", _json(_reference(error)))
    operation["responses"] = dict(sorted(responses.items()))
    if not secured:
        operation["security"] = []


class AsTaken(GenerateJsonSchema):
    """pydantic's schemas, and null where ``Strict`` takes one."""

    def model_schema(self, schema: ModelSchema) -> dict[str, Any]:
        found = super().model_schema(schema)
        if issubclass(schema["cls"], Strict):
            needed, fields = found.get("required", ()), found.get("properties", {})
            for name in fields.keys() - set(needed):
                fields[name] = _or_null(fields[name])
        return found


def with_what_passes(schema: Mapping[str, Any], *, strict: bool = False) -> dict[str, Any]:
    """A body's schema, with the fields that change nothing in any body."""
    fields, all_passing = schema["properties"], passing_schemas(strict=strict)
    passing = {name: one for name, one in all_passing.items() if name not in fields}
    patterns = {**as_patterns(passing), **schema.get("patternProperties", {})}
    return {**schema, "patternProperties": patterns}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field that may be null; what describes the field stays where it is."""
    nothing = {"type": "null"}
    if nothing in schema.get("anyOf", ()):
        return schema
    about = {name: schema[name] for name in _OF_FIELD if name in schema}
    kind = {name: value for name, value in schema.items() if name not in _OF_FIELD}
    kinds = kind["anyOf"] if kind.keys() == {"anyOf"} else [kind]
    return {"anyOf": [*kinds, nothing], **about}


_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222;
background:#fff}code,pre{font:14px/1.4 ui-monospace,monospace;background:#f3f3f5;border-radius:4px}
code{padding:1px 4px}pre{padding:.7rem;overflow-x:auto}summary{cursor:pointer;padding:.3rem 0}
summary b{display:inline-block;min-width:4.5rem}table{border-collapse:collapse;width:100%}
td,th{text-align:left;vertical-align:top;padding:.25rem .6rem;border-bottom:1px solid #ddd}
details{border-bottom:1px solid #ddd}h2{margin-top:2.5rem}
@media(prefers-color-scheme:dark){body{background:#16161a;color:#ddd}code,pre{background:#26262c}
td,th,details{border-color:#333}a{color:#8ab4ff}}
"""
_SHOWN_VALUES = 12  # of a choice


def page(document: Mapping[str, Any]) -> str:
    """HTML of an OpenAPI document."""
    info, schemas = document["info"], document["components"]["schemas"]
    routes = "".join(
        _route(method.upper(), path, operation)
        for path, operations in sorted(document["paths"].items())
        for method, operation in operations.items()
    )
    types = "".join(_type(name, schemas[name]) for name in sorted(schemas))
    title = escape(f"{info['title']} {info['version']}")
    return (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{title}</title>"
        '<meta name=viewport content="width=device-width">'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>{_text(info['description'])}"
        '<p>For programs the same is in <a href="openapi.json">openapi.json</a>.</p>'
        f"<h2>Routes</h2>{routes}<h2>Types</h2>{types}</body></html>"
    )


def _route(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [_text(operation.get("description", ""))]
    parameters = operation.get("parameters", [])
    if parameters:
        rows = ((one["name"], _kind(one["schema"]), one["in"]) for one in parameters)
        parts.append(_table(("parameter", "type", "where"), rows))
    body = operation.get("requestBody")
    if body:
        schema = body["content"]["application/json"]["schema"]
        parts.append(f"<p>Takes {_kind(schema)}.</p>")
    parts.append(_table(("status", "", "answer"), _answers(operation["responses"])))
    summary = escape(operation.get("summary", ""))
    return (
        f"<details><summary><b>{escape(method)}</b><code>{escape(path)}</code> {summary}</summary>"
        f"{''.join(parts)}</details>"
    )


def _answers(responses: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for status, response in responses.items():
        for media, content in (response.get("content") or {"": {"schema": {}}}).items():
            schema = content.get("schema", {})
            kind = _kind(schema.get("x-event", schema)) if schema else ""
            yield status, _inline(response["description"]), f"{escape(media)} {kind}"


def _type(name: str, schema: Mapping[str, Any]) -> str:
    needed = schema.get("required", ())
    rows = (
        (
            field,
            _kind(one),
            _inline(str(one.get("description", ""))),
            "needed" if field in needed else _default(one),
        )
        for field, one in schema.get("properties", {}).items()
    )
    about, anchor = _text(schema.get("description", "")), escape(name)
    table = _table(("field", "type", "", "left out"), rows)
    return f"<details id={anchor}><summary><code>{anchor}</code></summary>{about}{table}</details>"


def _table(names: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """The cells of the first column are plain text, the others HTML."""
    head = "".join(f"<th>{name}</th>" for name in names)
    lines = "".join(
        f"<tr><td><code>{escape(first)}</code></td>{''.join(f'<td>{cell}</td>' for cell in cells)}"
        for first, *cells in rows
    )
    return f"<table><tr>{head}</tr>{lines}</table>" if lines else ""


def _kind(schema: Mapping[str, Any]) -> str:
    """A type in a few words, with links to those that have a table."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        kinds = [_kind(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])[:_SHOWN_VALUES]
        return ", ".join(f"<code>{escape(json.dumps(value))}</code>" for value in values)
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return escape(str(schema.get("type", "anything")))


def _default(schema: Mapping[str, Any]) -> str:
    default = schema.get("default")
    return "" if default is None else f"<code>{escape(json.dumps(default))}</code>"


def _text(text: str) -> str:
    paragraphs = (part for part in text.split("\n\n") if part.strip())
    return "".join(f"<p>{_inline(part)}</p>" for part in paragraphs)


def _inline(text: str) -> str:
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(text))
