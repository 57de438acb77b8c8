"""GET /v1/models: the model that is served, by each of its names, and its adapters."""

from __future__ import annotations

import time
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.responses import Response
from msgspec import field

from quire.http.answers.rendering import Answer, respond
from quire.http.description.openapi import gives
from quire.http.service import Service


class ModelCard(Answer, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "quire"
    root: str
    parent: str | None
    max_model_len: int | None
    permission: list[Any] = field(default_factory=list)


class ModelList(Answer, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


def add_models(app: FastAPI, service: Service) -> None:
    created, base = int(time.time()), service.model_names[0]

    def card(name: str, root: str = base, parent: str | None = None) -> ModelCard:
        """root: of the model, whose other names are further cards."""
        length = service.input_processor.max_model_len
        return ModelCard(id=name, created=created, root=root, parent=parent, max_model_len=length)

    def adapters() -> list[ModelCard]:
        known = [] if service.adapters is None else service.adapters.cards
        return [card(one.name, one.path or base, one.parent or base) for one in known]

    @app.get("/v1/models", responses=gives(ModelList))
    async def models() -> Response:
        """The model that is served, by each of its names, and its adapters."""
        return respond(ModelList(data=[*map(card, service.model_names), *adapters()]))

    # Names of the Hugging Face hub hold a slash.
    @app.get("/v1/models/{name:path}", responses=gives(ModelCard, None, 404))
    async def model(name: str) -> Response:
        """The model by one of its names, or an adapter."""
        if service.check_model(name).adapter is None:
            return respond(card(name))
        return respond(next(one for one in adapters() if one.id == name))
