"""``POST /v1/count``: how many tokens a text has."""

from __future__ import annotations

import asyncio

from recipes.recipe import Recipe

_APP = "src/quire/http/app.py"
_DOOR = '''"""POST /v1/count: how many tokens a text has."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import Field

from quire.http.answers.rendering import Answer, respond
from quire.http.openapi import body_route, gives
from quire.http.body_fields import Strict, doc
from quire.http.service import Service


class CountRequest(Strict):
    """Its bounds are those of all bodies."""

    model: str | None = doc(None, "a name that /v1/models lists")
    text: Annotated[str, Field(description="what is counted")]


class Counted(Answer):
    """The answer."""

    count: int


def add_count(app: FastAPI, service: Service) -> None:
    @body_route(app, service, CountRequest, gives(Counted), "/v1/count")
    async def count(http: Request, request: CountRequest) -> Response:
        """How many tokens a text has."""
        service.check_model(request.model)
        with service.reserve():
            tokens = await service.engine.tokenize(request.text, add_special_tokens=True)
            return respond(Counted(len(tokens)))
'''

RECIPE = Recipe(
    "An endpoint",
    [
        (
            _APP,
            "from quire.http.doors.llama_cpp import add_llama_cpp\n",
            "from quire.http.doors.count import add_count\n"
            "from quire.http.doors.llama_cpp import add_llama_cpp\n",
        ),
        (_APP, "    add_tokens,\n", "    add_count,\n    add_tokens,\n"),
    ],
    {"src/quire/http/doors/count.py": _DOOR},
)


def check() -> None:
    """It answers, refuses by name, needs a key, and is described."""
    import httpx

    from quire.engine.assembly import build_engine
    from quire.engine.config import EngineConfig
    from quire.http.app import create_app
    from quire.http.config.server import ServerConfig

    engine, _ = build_engine(EngineConfig.create({"kv_cache_memory_bytes": "4MiB"}))
    app = create_app(engine, ["demo"], ServerConfig(api_key=("secret",)))

    async def ask() -> None:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://x") as client,
        ):
            assert (await client.post("/v1/count", json={"text": "a"})).status_code == 401
            client.headers["Authorization"] = "Bearer secret"
            tokens = engine.input_processor.tokenizer.encode("Once upon a time")
            answer = await client.post("/v1/count", json={"text": "Once upon a time"})
            assert answer.json() == {"count": len(tokens)}
            for body, word in (({"text": 1}, "text"), ({"text": "a", "texts": 1}, "texts")):
                answer = await client.post("/v1/count", json=body)
                assert answer.status_code == 400 and word in answer.json()["error"]["message"]
            paths = (await client.get("/openapi.json")).json()["paths"]
            assert paths["/v1/count"]["post"]["description"] == "How many tokens a text has."

    asyncio.run(ask())
