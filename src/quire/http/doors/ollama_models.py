"""What Ollama's clients ask of models and of the server."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from msgspec import UNSET, UnsetType, field

from quire.core.errors import RequestError
from quire.http.answers.rendering import Answer, respond
from quire.http.answers.streaming import LINES, Events, EventStream
from quire.http.body_fields import Strict
from quire.http.doors.turn_stream import now
from quire.http.openapi import body_route, gives
from quire.http.service import Service

RUNNING = "Quire is running"
_VERSION = "0.13.0"  # Ollama's, whose API this is; clients ask for a recent one
_LATEST = ":latest"
_NEVER = "9999-12-31T23:59:59Z"  # the model is let go with the server


class _NamingRequest(Strict):
    """A body that names a model; ``name`` is the older name of ``model``."""

    model: str | None = None
    name: str | None = None

    @property
    def named(self) -> str:
        name = self.model or self.name
        if name is None:
            raise RequestError("model is missing", "model")
        return name


class ShowRequest(_NamingRequest):
    """The body of POST /api/show."""

    verbose: bool = False


class PullRequest(_NamingRequest):
    """The body of POST /api/pull."""

    insecure: bool = False
    stream: bool = True


class PullStatus(Answer):
    status: str


class OllamaVersion(Answer):
    version: str
    quire: str


class OllamaDetails(Answer, kw_only=True):
    parent_model: str
    format: str = "safetensors"
    family: str = ""
    families: list[str] = field(default_factory=list)
    parameter_size: str = ""
    quantization_level: str


class OllamaModel(Answer, kw_only=True):
    """The last three of one that is loaded."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str | UnsetType = UNSET
    size_vram: int | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class OllamaModels(Answer):
    models: list[OllamaModel]


class ShownModel(Answer, kw_only=True):
    modelfile: str = ""
    parameters: str
    template: str  # Jinja, not Go's
    details: OllamaDetails
    model_info: dict[str, str | int | None]
    capabilities: list[str]
    modified_at: str


def add_models(app: FastAPI, service: Service) -> None:
    started = now()

    def cards(**more: Any) -> Response:
        names = service.all_names
        return respond(OllamaModels([_card(service, name, started, **more) for name in names]))

    @app.get("/", response_class=PlainTextResponse)
    async def root() -> str:
        """That somebody is there, for Ollama's command line."""
        return RUNNING

    @app.get("/api/version", responses=gives(OllamaVersion))
    async def version() -> Response:
        """Which Ollama's API this is."""
        return respond(OllamaVersion(_VERSION, app.version))

    @app.get("/api/tags", responses=gives(OllamaModels))
    async def tags() -> Response:
        """Ollama's list of models: the one that is served, by each of its names, and adapters."""
        return cards()

    @app.get("/api/ps", responses=gives(OllamaModels))
    async def running() -> Response:
        """Ollama's list of models that are loaded."""
        length = service.input_processor.max_model_len or 0
        return cards(expires_at=_NEVER, size_vram=0, context_length=length)

    @body_route(
        app,
        service,
        PullRequest,
        gives(PullStatus, PullStatus, 404, framing=LINES),
        "/api/pull",
        from_tools=True,
    )
    async def pull(http: Request, request: PullRequest) -> Response:
        """Ollama's: what is served is there already; anything else is not found."""
        service.check_model(untagged(service, request.named))
        if request.stream:
            return EventStream(_pulled(), LINES)
        return respond(PullStatus("success"))

    @body_route(app, service, ShowRequest, gives(ShownModel), "/api/show", from_tools=True)
    async def show(http: Request, request: ShowRequest) -> Response:
        """Ollama's: what is known of a model."""
        name = service.check_model(untagged(service, request.named)).name
        return respond(_description(service, name, started))


async def _pulled() -> Events:
    yield [PullStatus("pulling manifest"), PullStatus("success")]


def untagged(service: Service, name: str) -> str:
    """A model's name, which may end with Ollama's tag for the newest."""
    return name if name in service.all_names else name.removesuffix(_LATEST)


def _card(service: Service, name: str, started: str, **more: Any) -> OllamaModel:
    tagged = name if ":" in name else name + _LATEST
    return OllamaModel(
        name=tagged,
        model=tagged,
        modified_at=started,
        size=service.facts.weight_bytes,
        digest=sha256(name.encode()).hexdigest(),
        details=_details(service, name),
        **more,
    )


def _details(service: Service, name: str) -> OllamaDetails:
    facts, names = service.facts, service.model_names
    return OllamaDetails(
        parent_model="" if name in names else names[0],
        family=facts.family,
        families=[facts.family] if facts.family else [],
        parameter_size=_short(facts.num_parameters),
        quantization_level=facts.quantization or facts.dtype,
    )


def _short(count: int) -> str:
    """A number of parameters as Ollama has it: 7.6B, 494.03M."""
    for unit, size, digits in (("B", 10**9, 1), ("M", 10**6, 2), ("K", 10**3, 2)):
        if count >= size:
            return f"{count / size:.{digits}f}{unit}"
    return str(count) if count else ""


def _capabilities(service: Service) -> Iterator[str]:
    yield "completion" if service.input_processor.generates else "embedding"
    if service.speech.dialect is not None:
        yield "tools"
    if service.speech.marks is not None:
        yield "thinking"


def _description(service: Service, name: str, started: str) -> ShownModel:
    input_processor, facts = service.input_processor, service.facts
    defaults, family = input_processor.sampling_defaults, facts.family or "quire"
    return ShownModel(
        parameters="\n".join(f"{name} {value}" for name, value in defaults.items()),
        template=input_processor.tokenizer.chat_template,
        details=_details(service, name),
        model_info={
            "general.architecture": family,
            "general.parameter_count": facts.num_parameters,
            f"{family}.context_length": input_processor.max_model_len,
            f"{family}.vocab_size": input_processor.vocab_size,
        },
        capabilities=list(_capabilities(service)),
        modified_at=started,
    )
