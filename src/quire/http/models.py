"""GET /v1/models: the model by each of its names, and adapters, which can be loaded and let go."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from msgspec import field

from quire.capabilities.adapters.config import problem_with_name
from quire.capabilities.adapters.served import Adapters
from quire.core.errors import ModelError, RequestError, shown
from quire.http.answers.rendering import Answer, respond
from quire.http.body_fields import Name, Strict, doc
from quire.http.openapi import body_route, gives
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

    @app.get("/models", responses=gives(ModelList))
    @app.get("/v1/models", responses=gives(ModelList))
    async def models() -> Response:
        """The model that is served, by each of its names, and its adapters."""
        return respond(ModelList(data=[*map(card, service.model_names), *adapters()]))

    # Names of the Hugging Face hub hold a slash.
    @app.get("/models/{name:path}", responses=gives(ModelCard, None, 404))
    @app.get("/v1/models/{name:path}", responses=gives(ModelCard, None, 404))
    async def model(name: str) -> Response:
        """The model by one of its names, or an adapter."""
        if service.check_model(name).adapter is None:
            return respond(card(name))
        return respond(next(one for one in adapters() if one.id == name))


_LONGEST_PATH = 4096


class LoadRequest(Strict):
    """The body of POST /v1/load_lora_adapter."""

    lora_name: Name = doc(..., "what requests name as their model")
    lora_path: str = doc(..., "a directory below the server's lora_directory")
    base_model_name: Name | None = doc(None, "what /v1/models tells as its parent")
    load_inplace: bool = doc(False, "exchange one that is called so already")


class UnloadRequest(Strict):
    """The body of POST /v1/unload_lora_adapter."""

    lora_name: Name = doc(..., "of an adapter that is loaded")
    lora_int_id: int | None = doc(None, "counts for nothing: a name is enough")


def add_adapters(app: FastAPI, service: Service) -> None:
    """Add the routes, if the settings ask for them."""
    config, adapters = service.config, service.adapters
    if not config.allow_runtime_lora_updating or adapters is None:
        return
    assert config.lora_directory is not None, "the config asks for it"
    directory = Path(config.lora_directory)

    @body_route(
        app, service, LoadRequest, {}, "/v1/load_lora_adapter", response_class=PlainTextResponse
    )
    async def load(http: Request, request: LoadRequest) -> Response:
        """Read an adapter, and serve it as a model."""
        await _load(service, adapters, directory, request)
        name = request.lora_name
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    @body_route(
        app, service, UnloadRequest, {}, "/v1/unload_lora_adapter", response_class=PlainTextResponse
    )
    async def unload(http: Request, request: UnloadRequest) -> Response:
        """Serve an adapter to nobody new."""
        name = request.lora_name
        await service.in_engine(adapters.remove, name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")


async def _load(
    service: Service, adapters: Adapters, directory: Path, request: LoadRequest
) -> None:
    name = request.lora_name
    if problem := problem_with_name(name):
        raise RequestError(f"lora_name: {problem}", "lora_name")
    if name in service.model_names:
        raise RequestError(f"lora_name {name} is a name of the model itself", "lora_name")
    path = _below(directory, request.lora_path)
    try:
        source = await asyncio.to_thread(adapters.check, path)
    except ModelError as error:
        raise RequestError(f"lora_path: {error}", "lora_path") from error
    add = partial(adapters.add, in_place=request.load_inplace)
    await service.in_engine(add, name, source, request.base_model_name)


def _below(directory: Path, given: str) -> Path:
    """The path that is meant, links followed; RequestError: it leads out of the directory."""
    try:
        path = (directory / given[: _LONGEST_PATH + 1]).resolve()
        inside = len(given) <= _LONGEST_PATH and path.is_relative_to(directory.resolve())
    except (OSError, ValueError, RuntimeError):  # a NUL, or links that go round
        inside = False
    if not inside:
        raise RequestError(
            f"lora_path {shown(given)} is not below the server's lora_directory", "lora_path"
        )
    return path
