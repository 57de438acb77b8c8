"""The page at /, its login, and its files as browsers take them: few, small, and kept.

Its modules are one script and its style sheets one, so that a browser asks once.
"""

from __future__ import annotations

import gzip
import time
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response

from quire.http.doors.ollama_models import RUNNING
from quire.http.guards.keys import PAGE, Logins, keep, presented_key
from quire.http.live.bundling import page_sources, script_of, sheet_of

INDEX = "index.html"
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
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "vary": "accept, accept-encoding",
    "x-content-type-options": "nosniff",
}
_FOR_GOOD = {"cache-control": "public, max-age=31536000, immutable"}
_NO_RECORDING = 'content=""'
"""In index.html, where a recording's address may stand."""


class _File(NamedTuple):
    content: bytes
    packed: bytes
    headers: dict[str, str]

    @classmethod
    def of(cls, name: str, text: str, headers: dict[str, str]) -> _File:
        content = text.encode()
        own = {"content-type": _TYPES[Path(name).suffix], "etag": f'"{_digest(content)}"'}
        return cls(content, gzip.compress(content, mtime=0), {**HEADERS, **own, **headers})


class Files:
    """``index.html``, and three more: modules and style sheets are one each, as the icon is.

    Those lie below a name that is made of what is in them, and so a browser may keep them for good:
    of a page that it has seen it asks for ``index.html`` again, and nothing else.
    ``recording``: what the page shows at first.
    """

    def __init__(self, recording: str = "") -> None:
        sources = page_sources()
        contents = {
            "main.js": script_of(sources, "main.js"),
            "style.css": sheet_of(sources),
            "icon.svg": sources["icon.svg"],
        }
        version = _digest("\0".join(contents.values()).encode())
        index = sources[INDEX].replace(_NO_RECORDING, f'content="{recording}"')
        index = index.replace('="page/', f'="page/{version}/')
        self._found = {INDEX: _File.of(INDEX, index, {})}
        for name, content in contents.items():
            self._found[f"{version}/{name}"] = _File.of(name, content, _FOR_GOOD)

    def answer(self, http: Request, name: str) -> Response:
        file = self._found.get(name)
        if file is None:
            return Response(status_code=404)
        if http.headers.get("if-none-match") == file.headers["etag"]:
            return Response(status_code=304, headers=file.headers)
        if "gzip" in http.headers.get("accept-encoding", ""):
            return Response(file.packed, headers={**file.headers, "content-encoding": "gzip"})
        return Response(file.content, headers=file.headers)


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=12).hexdigest()


def add_page(app: FastAPI) -> None:
    """Add the page, before any other route at /."""
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
