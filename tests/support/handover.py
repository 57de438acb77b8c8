"""Servers that prefill and that decode, and wires between them that are not to be trusted."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from quire.engine.assembly import build_engine
from quire.engine.config import EngineConfig
from quire.engine.engine import Engine
from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from quire.http.serving import Server

ASK_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False, "remote_host": None}


class Serving:
    """An engine behind its server."""

    def __init__(self, engine: Engine, http: httpx.Client) -> None:
        self.engine = engine
        self.http = http

    def complete(self, **body: Any) -> dict[str, Any]:
        answer = self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def prefill(self, **body: Any) -> dict[str, Any]:
        """As vLLM's proxies ask for it: what to give to a decode engine."""
        asked = {**body, "max_tokens": 1, "n": 1, "stream": False, "logprobs": None}
        found: dict[str, Any] = self.complete(**asked, kv_transfer_params=ASK_PREFILL)
        told: dict[str, Any] = found["kv_transfer_params"]
        return told


def two_ports() -> int:
    """The first of two that are free, one after the other."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port: int = first.getsockname()[1]
            with suppress(OSError, OverflowError), socket.create_server(("127.0.0.1", port + 1)):
                return port


@contextmanager
def serving(model: Path, **options: Any) -> Iterator[Serving]:
    engine, _ = build_engine(EngineConfig.create({"model": str(model), **options}))
    config = ServerConfig(host="127.0.0.1", port=0, shutdown_timeout=0)
    server = Server(create_app(engine, ["m"], config), config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as http:
        yield Serving(engine, http)
    server.should_exit = True
    thread.join(30)
    engine.close()
    usage = engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity, "leaked blocks"


Spoil = Callable[[bytearray, int], bool]
"""Given bytes that a peer sends, and how many came before: may change them; false: hang up."""


@contextmanager
def relay(port: int, spoil: Spoil) -> Iterator[int]:
    """A port that leads to another, by a wire that spoils what comes back."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_relay, args=(listener, port, spoil), daemon=True).start()
        yield listener.getsockname()[1]


def _relay(listener: socket.socket, port: int, spoil: Spoil) -> None:
    try:
        near, _ = listener.accept()
    except OSError:
        return
    with near, socket.create_connection(("127.0.0.1", port)) as far:
        back = threading.Thread(target=_forward, args=(near, far))
        back.start()
        count = 0
        while piece := bytearray(far.recv(4096)):
            goes_on = spoil(piece, count)
            count += len(piece)
            try:
                near.sendall(piece)
            except OSError:
                break
            if not goes_on:
                break
        near.close()
        far.shutdown(socket.SHUT_RDWR)
        back.join()


def _forward(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(4096):
            target.sendall(piece)
    except OSError:
        pass


@contextmanager
def liar(says: bytes, *, hangs_up: bool) -> Iterator[int]:
    """A port of somebody who is no Quire: says something, and hangs up or waits."""
    done = threading.Event()

    def answer(listener: socket.socket) -> None:
        try:
            wire, _ = listener.accept()
        except OSError:
            return
        with wire:
            wire.sendall(says)
            if not hangs_up:
                done.wait(10)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=[listener])
        thread.start()
        yield listener.getsockname()[1]
        done.set()
        listener.close()
        thread.join()
