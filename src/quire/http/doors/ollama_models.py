"""What Ollama's clients ask of models and of the server."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse

from quire.core.errors import RequestError
from quire.http.answers.streaming import Json
from quire.http.description.openapi import gives, takes
from quire.http.doors.answering import now
from quire.http.doors.answers import OllamaModels, OllamaVersion, ShownModel
from quire.http.doors.ollama_types import ShowRequest
from quire.http.service import Asked, Service

RUNNING = "Quire is running"
_VERSION = "0.13.0"  # Ollama's, whose API this is; clients ask for a recent one
_LATEST = ":latest"
_NEVER = "9999-12-31T23:59:59Z"  # the model is let go with the server


def add_models(app: FastAPI, service: Service) -> None:
    started = now()

    def cards() -> list[Json]:
        return [_card(service, name, started) for name in service.all_names]

    @app.get("/", response_class=PlainTextResponse)
    async def root() -> str:
        """That somebody is there, for Ollama's command line."""
        return RUNNING

    @app.get("/api/version", responses=gives(OllamaVersion))
    async def version() -> Json:
        """Which Ollama's API this is."""
        return {"version": _VERSION, "quire": app.version}

    @app.get("/api/tags", responses=gives(OllamaModels))
    async def tags() -> Json:
        """Ollama's list of models: the one that is served, by each of its names, and adapters."""
        return {"models": cards()}

    @app.get("/api/ps", responses=gives(OllamaModels))
    async def running() -> Json:
        """Ollama's list of models that are loaded."""
        length = service.input_processor.max_model_len
        more = {"expires_at": _NEVER, "size_vram": 0, "context_length": length or 0}
        return {"models": [{**card, **more} for card in cards()]}

    @app.post("/api/show", openapi_extra=takes(ShowRequest), responses=gives(ShownModel))
    async def show(http: Request) -> Json:
        """Ollama's: what is known of a model."""
        request = await service.bodies.parse(http, ShowRequest, from_tools=True)
        name = request.model or request.name
        if name is None:
            raise RequestError("model is missing", "model")
        return _description(service, check_model(service, name).name, started)


def check_model(service: Service, name: str) -> Asked:
    """UnknownModelError unless the name is served, with or without Ollama's tag for the newest."""
    return service.check_model(name if name in service.all_names else name.removesuffix(_LATEST))


def _card(service: Service, name: str, started: str) -> Json:
    tagged = name if ":" in name else name + _LATEST
    return {
        "name": tagged,
        "model": tagged,
        "modified_at": started,
        "size": service.facts.weight_bytes,
        "digest": sha256(name.encode()).hexdigest(),
        "details": _details(service, name),
    }


def _details(service: Service, name: str) -> Json:
    facts = service.facts
    return {
        "parent_model": "" if name in service.model_names else service.model_names[0],
        "format": "safetensors",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": facts.quantization or facts.dtype,
    }


def _capabilities(service: Service) -> Iterator[str]:
    yield "completion" if service.input_processor.generates else "embedding"
    if service.speech.dialect is not None:
        yield "tools"
    if service.speech.marks is not None:
        yield "thinking"


def _description(service: Service, name: str, started: str) -> Json:
    input_processor = service.input_processor
    defaults = input_processor.sampling_defaults
    return {
        "modelfile": "",
        "parameters": "\n".join(f"{name} {value}" for name, value in defaults.items()),
        "template": input_processor.tokenizer.chat_template,  # Jinja, not Go's
        "details": _details(service, name),
        "model_info": {
            "general.architecture": "quire",
            "quire.context_length": input_processor.max_model_len,
            "quire.vocab_size": input_processor.vocab_size,
        },
        "capabilities": list(_capabilities(service)),
        "modified_at": started,
    }
