"""The page at /, its files, and the login that stands before it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Route

from quire import page
from quire.server.doors.ollama_models import RUNNING
from quire.server.guards.keys import PAGE, presented_key
from quire.server.guards.logins import Logins, keep

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "vary": "accept",
    "x-content-type-options": "nosniff",
}


_NO_RECORDING = b'content=""'
"""In index.html, where a recording's address may stand."""


class _File(NamedTuple):
    content: bytes
    headers: dict[str, str]


class Files:
    """The page's files, as they are answered. ``recording``: what it shows at first."""

    def __init__(self, recording: str = "") -> None:
        self._found = dict(_read(recording))

    def answer(self, http: Request, name: str) -> Response:
        file = self._found.get(name)
        if file is None:
            return Response(status_code=404)
        if http.headers.get("if-none-match") == file.headers["etag"]:
            return Response(status_code=304, headers=file.headers)
        return Response(file.content, headers=file.headers)


def add_page(app: FastAPI) -> None:
    """To be added before what else is at /."""
    files = Files()

    @app.get("/", include_in_schema=False)
    async def front(http: Request) -> Response:
        """The page, for browsers; for Ollama's command line, that somebody is there."""
        if "text/html" in http.headers.get("accept", ""):
            return files.answer(http, "index.html")
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
        return files.answer(http, "index.html")

    async def file(http: Request) -> Response:
        return files.answer(http, http.path_params["name"])

    async def content(http: Request) -> Response:
        return FileResponse(recording, media_type="application/gzip", headers=_HEADERS)

    routes = [Route("/", front), Route(PAGE + "{name:path}", file), Route(f"/{name}", content)]
    # Else another site's name, once it points here, would let its scripts read the recording.
    only_here = Middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1"])
    return Starlette(routes=routes, middleware=[only_here])


def _read(recording: str) -> Iterator[tuple[str, _File]]:
    folder = Path(page.__path__[0])
    for path in folder.rglob("*"):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            if recording and path.name == "index.html":
                content = content.replace(_NO_RECORDING, f'content="{recording}"'.encode())
            etag = f'"{blake2b(content, digest_size=12).hexdigest()}"'
            headers = {**_HEADERS, "content-type": _TYPES[path.suffix], "etag": etag}
            yield path.relative_to(folder).as_posix(), _File(content, headers)
