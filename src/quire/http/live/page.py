"""The page at /, and the login that stands before it."""

from __future__ import annotations

import time
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Route

from quire.http.doors.ollama_models import RUNNING
from quire.http.guards.keys import PAGE, Logins, keep, presented_key
from quire.http.live.files import HEADERS, INDEX, Files


def add_page(app: FastAPI) -> None:
    """To be added before what else is at /."""
    files = Files()

    @app.get("/", include_in_schema=False)
    async def front(http: Request) -> Response:
        """The page, for browsers; for Ollama's command line, that somebody is there."""
        if "text/html" in http.headers.get("accept", ""):
            return files.answer(http, INDEX)
        return PlainTextResponse(RUNNING, headers={"vary": "accept"})

    @app.get(PAGE + "{name:path}", include_in_schema=False)
    async def file(http: Request, name: str) -> Response:
        return files.answer(http, name)

    @app.post("/v1/quire/login", status_code=204, response_class=Response)
    async def log_in(http: Request) -> Response:
        """Have a browser bear a cookie in place of the key that this request bears."""
        response = Response(status_code=204)
        key = presented_key(http.scope)
        if key:
            keep(response, http, Logins.token(key, time.time()))
        return response

    @app.delete("/v1/quire/login", status_code=204, response_class=Response)
    async def log_out(http: Request) -> Response:
        """Have it forget the cookie."""
        response = Response(status_code=204)
        keep(response, http, "")
        return response


def replay_app(recording: Path) -> Starlette:
    """The page over a recording, for browsers of this machine: no engine is behind it."""
    name = "recording.quire"
    files = Files(name)

    async def front(http: Request) -> Response:
        return files.answer(http, INDEX)

    async def file(http: Request) -> Response:
        return files.answer(http, http.path_params["name"])

    async def content(http: Request) -> Response:
        return FileResponse(recording, media_type="application/gzip", headers=HEADERS)

    routes = [Route("/", front), Route(PAGE + "{name:path}", file), Route(f"/{name}", content)]
    # Else another site's name, once it points here, would let its scripts read the recording.
    only_here = Middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1"])
    return Starlette(routes=routes, middleware=[only_here])
