"""The part of Hugging Face's hub that downloads take, on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import quire

DEMO = Path(quire.__file__).parent / "models/demo"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = "model.safetensors"


def repository(**more: bytes) -> dict[str, bytes]:
    files = {name: (DEMO / name).read_bytes() for name in ("config.json", WEIGHTS)}
    return {**files, "README.md": b"# read", "original/w.safetensors": b"second copy", **more}


@contextmanager
def hub(
    token: str | None = None, **repositories: dict[str, bytes]
) -> Iterator[tuple[str, list[str]]]:
    """The hub's address, and what was fetched. It is its own proxy.

    token: without it, there is a repository, and nothing of it is given.
    """
    fetched: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None: ...

        def do_HEAD(self) -> None:
            self._send(self._file() or b"", self._file() is not None)

        def do_GET(self) -> None:
            if self._path.startswith("/api/models/"):
                files = repositories.get(self._path.split("/")[4])
                siblings = [
                    {"type": "file", "rfilename": name, "path": name, "size": len(content),
                     "oid": COMMIT}
                    for name, content in (files or {}).items()
                ]  # fmt: skip
                card = {"id": "owner/x", "sha": COMMIT, "siblings": siblings}
                tree = "/tree/" in self._path
                self._send(json.dumps(siblings if tree else card).encode(), files is not None)
            elif self._path.startswith("/api/"):  # what the library asks beside
                self._send(b"", False)
            else:
                fetched.append(self._path.rpartition("/")[2])
                self._send(self._file() or b"", self._file() is not None)

        def _file(self) -> bytes | None:
            _, _, name, *path = self._path.split("/")
            return repositories.get(name, {}).get("/".join(path[2:]))

        @property
        def _path(self) -> str:
            return urlsplit(self.path).path

        def _send(self, content: bytes, found: bool) -> None:
            gated = token is not None and self.headers["authorization"] != f"Bearer {token}"
            found = found and not gated
            self.send_response(200 if found else 401 if gated else 404)
            if not found:
                self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
                content = b""
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hash(content)}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", fetched
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
