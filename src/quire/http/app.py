"""The HTTP app: OpenAI's API under /v1, and what an operator asks for beside it."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.routing import APIRoute

from quire.core.version import __version__
from quire.engine.async_engine import AsyncEngine, MakeThread
from quire.engine.engine import Engine
from quire.engine.forecast import Forecasts
from quire.engine.stats import History
from quire.engine.thread import EngineThread
from quire.engine.tracing import Collector, SpanSender
from quire.http.chats.speech import Speech
from quire.http.config.otlp import metrics_protocol, protocol_of, wants_metrics
from quire.http.config.server import ServerConfig
from quire.http.doors.anthropic import add_anthropic
from quire.http.doors.llama_cpp import add_llama_cpp
from quire.http.doors.ollama import add_ollama
from quire.http.doors.responses import add_responses
from quire.http.doors.tokens import add_tokens
from quire.http.doors.vectors import add_vectors
from quire.http.errors import install_error_handlers
from quire.http.guards.bodies import LARGEST_BODY, Bodies, default_max_body_bytes
from quire.http.guards.envelope import (
    AnswerHead,
    CancelOnDisconnect,
    CloseUnread,
    Drain,
    Envelope,
    RefuseWhileDraining,
)
from quire.http.guards.keys import RequireApiKey
from quire.http.live.page import add_page
from quire.http.live.routes import add_live
from quire.http.live.state import EngineReader, Moment, miss_log
from quire.http.live.watching import BlockWatch
from quire.http.metrics import ServerMetrics
from quire.http.models import add_adapters, add_models
from quire.http.openai.chat import add_chats
from quire.http.openai.completions import add_completions
from quire.http.openapi import describe
from quire.http.operation import add_operation
from quire.http.otlp_metrics import MetricsSender
from quire.http.service import ModelFacts, Service
from quire.http.sessions import add_sessions

_ROUTES = (
    add_completions,
    add_chats,
    add_sessions,
    add_vectors,
    add_tokens,
    add_responses,
    add_anthropic,
    add_ollama,
    add_llama_cpp,
    add_models,
    add_adapters,
)

logger = logging.getLogger(__name__)


def create_app(
    engine: Engine,
    model_names: Sequence[str],
    config: ServerConfig,
    make_thread: MakeThread = EngineThread,
    facts: ModelFacts | None = None,
    replica: str = "",
) -> FastAPI:
    """An app that serves ``engine``; it runs the engine from its startup to its shutdown.

    model_names: the names by which requests may call the model; the first one labels metrics.
    make_thread: makes the thread in which the engine runs.
    facts: what clients may learn of the model.
    replica: what the engine is called among others that serve together.
    """
    if config.otlp_traces_endpoint is not None:
        _send_spans(engine, model_names[0], config, config.otlp_traces_endpoint)
    metrics = ServerMetrics(engine, model_names[0], config.metrics_names)
    if wants_metrics():
        _send_metrics(engine, metrics)
    names, facts = tuple(model_names), facts or ModelFacts()
    reader = EngineReader(engine, names[0], facts.kv_layers, facts.pool_bytes)
    past, async_engine = _watch(engine, reader, config), AsyncEngine(engine, make_thread)
    vectors = config.enable_prompt_embeds  # larger than any text
    most = LARGEST_BODY if vectors else default_max_body_bytes(engine.input_processor)
    count = metrics.observe_left_out
    bodies = Bodies(config, most, async_engine.give_memory_back, count)
    speech = Speech.of(engine.input_processor.tokenizer, config)
    service = Service(async_engine, names, metrics, config, bodies, speech, facts, replica)
    drain, watch = Drain(), BlockWatch(async_engine, reader.pressure)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async_engine.start()
        try:
            yield
        finally:
            watch.close()
            await async_engine.stop()
            bodies.close()
            _log_waste(engine)

    app = FastAPI(
        title="Quire",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,  # it would be made on the event loop, and its pages by others' scripts
        generate_unique_id_function=_operation_id,
    )
    app.state.service, app.state.drain = service, drain
    _guard(app, config, drain, engine.forecasts)
    install_error_handlers(app)
    if config.dashboard:
        add_page(app)
    for add in _ROUTES:
        add(app, service)
    add_operation(app, service, drain)
    add_live(app, service, reader, watch, past)
    describe(app, config)
    return app


def _watch(engine: Engine, reader: EngineReader, config: ServerConfig) -> History[Moment]:
    past = History(lambda: reader.moment(0), engine.clock)
    for watcher in (past, *miss_log(reader, config)):
        engine.events.add(watcher)
    return past


def _guard(app: FastAPI, config: ServerConfig, drain: Drain, forecasts: Forecasts) -> None:
    """What stands before the routes. The last one added is outermost."""
    expected = forecasts.take if config.enable_prompt_tokens_details else lambda request_id: None
    app.add_middleware(AnswerHead)
    app.add_middleware(RefuseWhileDraining, drain=drain)
    if config.api_key:
        app.add_middleware(RequireApiKey, config=config)
    app.add_middleware(CloseUnread)
    app.add_middleware(CancelOnDisconnect)
    app.add_middleware(Envelope, config=config, expected=expected)


def _send_spans(engine: Engine, model_name: str, config: ServerConfig, endpoint: str) -> None:
    server: dict[str, str | int] = {"server.address": config.host, "server.port": config.port}
    collector = Collector("traces", protocol_of("traces"), endpoint)
    engine.events.add(SpanSender(collector, model_name, __version__, server, engine.clock))


def _send_metrics(engine: Engine, metrics: ServerMetrics) -> None:
    protocol = metrics_protocol()
    if protocol is None:
        logger.warning(
            "OTEL_METRICS_EXPORTER: metrics are not sent, since OpenTelemetry's packages are not "
            "installed: pip install 'quire-llm[otel]'"
        )
        return
    collector = Collector("metrics", protocol, None)
    engine.events.add(MetricsSender(collector, metrics.read, __version__))


def _operation_id(route: APIRoute) -> str:
    """What generated clients call it: get_v1_models_name."""
    words = re.findall(r"\w+", route.path_format)
    return "_".join([min(route.methods or ()).lower(), *words])


def _log_waste(engine: Engine) -> None:
    efficiency = engine.stats.kv_efficiency
    if efficiency is not None:
        logger.info(
            "KV memory: %.1f%% of what requests took held their tokens, %.1f%% was waste",
            100 * efficiency,
            100 * (1 - efficiency),
        )
