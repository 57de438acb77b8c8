"""One HTTP request to the app, spoken in ASGI: a client that may dawdle, stall or hang up."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message


@dataclass
class Answer:
    """What came back. ``status`` 0: nothing did."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False  # to its last byte
    asked: float = 0.0
    ended: float = 0.0
    hung_up: bool = False

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The events of a stream, without its comments and the [DONE]."""
        lines = self.body.decode().split("\n\n")
        data = [line.removeprefix("data: ") for line in lines if line and line[0] != ":"]
        return [json.loads(event) for event in data if event != "[DONE]"]


class Exchange:
    """A request under way.

    upload: seconds over which the body comes. unfinished: its second half never does.
    dawdle: seconds that the client takes over each piece that it is sent.
    """

    def __init__(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        key: str = "",
        upload: float = 0.0,
        unfinished: bool = False,
        dawdle: float = 0.0,
    ) -> None:
        self.path = path
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        headers.append((b"content-length", b"%d" % len(body)))
        if key:
            headers.append((b"authorization", b"Bearer " + key.encode()))
        self._scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "scheme": "http", "headers": headers, "client": ("127.0.0.1", 1), "server": ("x", 80),
            "state": {},
        }  # fmt: skip
        half = len(body) // 2
        self._pieces = [body[:half]] if unfinished else [body[:half], body[half:]]
        self._unfinished = unfinished
        self._pause = upload / 2
        self._dawdle = dawdle
        self._gone = asyncio.Event()
        self.answer = Answer()

    def hang_up(self) -> None:
        """The client is gone: what is sent now goes nowhere."""
        if not self.answer.complete:
            self.answer.hung_up = True
        self._gone.set()

    async def run(self, app: ASGIApp) -> Answer:
        """To the end of the answer, or to where the server lets go of it."""
        loop = asyncio.get_running_loop()
        self.answer.asked = loop.time()
        with contextlib.suppress(ConnectionError):
            await app(self._scope, self._receive, self._send)
        self.answer.ended = loop.time()
        return self.answer

    async def _receive(self) -> Message:
        if self._pieces and not self._gone.is_set():
            if self._pause:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._gone.wait(), self._pause)
            if not self._gone.is_set():
                more = len(self._pieces) > 1 or self._unfinished
                return {"type": "http.request", "body": self._pieces.pop(0), "more_body": more}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            assert not self.answer.status, "an answer begins once"
            self.answer.status = message["status"]
            pairs = message.get("headers", [])
            self.answer.headers = {name.decode(): value.decode() for name, value in pairs}
        elif message["type"] == "http.response.body":
            assert self.answer.status and not self.answer.complete
            self.answer.body += message.get("body", b"")
            if not message.get("more_body", False):
                self.answer.complete = True
                self._gone.set()  # to whom everything was sent, nothing more can be
        if self._dawdle:
            await asyncio.sleep(self._dawdle)
