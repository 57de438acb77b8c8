"""What /docs and /openapi.json tell of bodies, which the routes read for themselves."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from quire.server.doors.anthropic_types import CountTokensRequest, MessagesRequest
from quire.server.doors.llama_cpp_types import LlamaCppRequest
from quire.server.doors.ollama_types import GenerateRequest, OllamaChatRequest, ShowRequest
from quire.server.doors.responses_types import ResponsesRequest
from quire.server.doors.tokens_types import DetokenizeRequest, TokenizeRequest
from quire.server.openai_types import ChatRequest, CompletionRequest
from quire.server.session_types import AppendRequest, OpenRequest, RecomputeRequest, TurnRequest

_SCHEMAS = "#/components/schemas/"
_GENERATION = (CompletionRequest, ChatRequest)
_SESSIONS = (OpenRequest, AppendRequest, TurnRequest, RecomputeRequest)
_DOORS = (
    TokenizeRequest, DetokenizeRequest, LlamaCppRequest, MessagesRequest, CountTokensRequest,
    GenerateRequest, OllamaChatRequest, ShowRequest, ResponsesRequest,
)  # fmt: skip
_BODIES: list[tuple[type[BaseModel], Literal["validation"]]] = [
    (kind, "validation") for kind in (*_GENERATION, *_SESSIONS, *_DOORS)
]


def takes(kind: type[BaseModel]) -> dict[str, Any]:
    """What a route's documentation says of its body (``openapi_extra``)."""
    content = {"application/json": {"schema": {"$ref": _SCHEMAS + kind.__name__}}}
    return {"requestBody": {"required": True, "content": content}}


def describe_bodies(app: FastAPI) -> None:
    """Put the schemas that ``takes`` refers to into /openapi.json."""
    routes_only = app.openapi

    def described() -> dict[str, Any]:
        document = routes_only()
        _, bodies = models_json_schema(_BODIES, ref_template=_SCHEMAS + "{model}")
        document.setdefault("components", {}).setdefault("schemas", {}).update(bodies["$defs"])
        return document

    app.openapi = described  # type: ignore[method-assign]
