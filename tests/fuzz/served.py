"""Cases as requests, one after the other, to a real ``quire serve``."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from attacks.doors import bodies
from fuzz.case import Case
from fuzz.child import Limits, Outcome
from quire_lab.bench.processes import ServerProcess, serving

_FLAGS = ("--trust-request-chat-template", "--tool-call-parser", "hermes")
_MODEL = "quire-demo"
_SERVED, _REFUSED = {200}, {400, 413, 422, 429}
_DYING = 2.0  # seconds from a connection that breaks off to the end of a process that does
_LONGEST_REFUSAL = 4_096  # bytes


def requests(case: Case) -> list[tuple[str, dict[str, Any]]]:
    """The path and the body at each door that takes it."""
    given = case.given
    chat = {"model": _MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 50}
    match case.language:
        case "schema":
            return bodies(_MODEL, given["json"])
        case "template":
            own = {"chat_template": given["template"], "chat_template_kwargs": given["variables"]}
            return [("/v1/chat/completions", {**chat, **own})]
        case "tools":
            return [("/v1/chat/completions", {**chat, **_with_tools(given)})]
    plain = {"model": _MODEL, "prompt": "The town", "max_tokens": 50, "temperature": 2.0}
    return [
        ("/v1/completions", {**plain, "structured_outputs": given}),
        ("/v1/completions", {**plain, "structured_outputs": given, "n": 4}),
        ("/v1/chat/completions", {**chat, "structured_outputs": given, "temperature": 2.0}),
    ]


def _with_tools(given: Any) -> dict[str, Any]:
    choice = given["tool_choice"]
    if choice not in ("auto", "none", "required"):
        choice = {"type": "function", "function": {"name": choice}}
    tools = [{"type": "function", "function": one} for one in given["tools"]]
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": given["several"]}


def ask(server: ServerProcess, case: Case, seed: int, limits: Limits) -> Outcome:
    """At one of the doors, by the seed. It hangs up where there is no answer in time."""
    doors = requests(case)
    path, body = doors[seed % len(doors)]
    started = time.monotonic()

    def outcome(kind: str, why: str) -> Outcome:
        return Outcome(kind, why, path, time.monotonic() - started, server.peak_rss() or 0)

    try:
        status, answer = _post(server, path, json.dumps(body).encode(), limits.seconds)
    except TimeoutError:
        return outcome("slow", "no answer")
    except (HTTPException, OSError) as error:
        with suppress(subprocess.TimeoutExpired):
            status = server.process.wait(_DYING)
            return outcome("crashed", f"status {status}: {server.log()[-400:]}")
        return outcome("wrong", f"{error!r}")
    if status in _SERVED:
        return outcome("served", "")
    told = answer.decode(errors="replace")[:400]
    short = len(answer) <= _LONGEST_REFUSAL
    return outcome("refused" if status in _REFUSED and short else "wrong", f"{status}: {told}")


def _post(server: ServerProcess, path: str, body: bytes, patience: float) -> tuple[int, bytes]:
    parts = urlsplit(server.url)
    assert parts.hostname is not None
    connection = HTTPConnection(parts.hostname, parts.port, timeout=patience)
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def servers() -> Iterator[ServerProcess]:
    """The same server as long as it lives; then a new one."""
    while True:
        with serving(_FLAGS) as server:
            while server.process.poll() is None:
                yield server
