"""What a streamed token costs a server beside the model: processor time of its threads.

    python benchmarks/streams.py [--streams 64] [--step-ms 3] [--tokens 200] [--stream-interval 4]

The server is the real one, its model a pause: each step takes so many milliseconds and gives every
stream a token. Between two steps memory is read, as a model does, so that caches are cold
(--warm: it is not). "floor" is uvicorn with an app of twenty lines that sends the same bytes, a
write a token: what is left of the event loop's time below that is the server's own. The client
counts events in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import uvicorn
from common import flags_of
from starlette.types import Receive, Scope, Send

import quire
from quire.core.memory import PagedAllocator
from quire.core.protocol import Outcome, PendingStep, Sample, Step, StepResult
from quire.core.scheduling import BatchLimits, Scheduler
from quire.engine.engine import Engine
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from quire.http.guards.connections import ClientConnection, Connections
from quire.http.serving import Server
from quire.text.tokenizer import load_tokenizer
from quire_lab.bench.report import machine_facts

_DEMO = Path(quire.__file__).parent / "models/demo"
_VOCAB, _FIRST_WORD, _WORDS = 4096, 1000, 2000  # token ids
_COLD = 2**20  # numbers of eight bytes read between two steps
_EVENT = b"data: %b\n\n" % json.dumps(
    {"id": "cmpl-0123456789abcdef0123456789abcdef", "created": 1700000000, "model": "quire-demo",
     "object": "text_completion", "choices": [{"index": 0, "text": " word", "logprobs": None,
     "finish_reason": None, "stop_reason": None}]}, separators=(",", ":")
).encode()  # fmt: skip


class Pause:
    """An executor whose model takes ``seconds`` a step; other threads run meanwhile."""

    def __init__(self, seconds: float, *, warm: bool) -> None:
        self._seconds = seconds
        self._memory = np.ones(1 if warm else _COLD)

    def submit(self, step: Step) -> PendingStep:
        time.sleep(self._seconds)
        self._memory.sum()
        words = (
            (chunk.seq_id, _FIRST_WORD + (chunk.seq_id * 31 + chunk.start) % _WORDS)
            for chunk in step.chunks
            if chunk.readout
        )
        result = StepResult({seq_id: Outcome([Sample(word)]) for seq_id, word in words})
        return PendingStep(step, lambda: result)


def serve(arguments: argparse.Namespace) -> uvicorn.Server:
    """The server with that for a model."""
    blocks = arguments.streams * (arguments.tokens // 16 + 2)
    scheduler = Scheduler(PagedAllocator(blocks, 16), BatchLimits(arguments.streams, 4096))
    inputs = InputProcessor(load_tokenizer(_DEMO), ModelOutputs(_VOCAB), max_model_len=2048, seed=0)
    engine = Engine(scheduler, Pause(arguments.step_ms / 1000, warm=arguments.warm), inputs)
    config = ServerConfig(port=0, stream_interval=arguments.stream_interval)
    return Server(create_app(engine, ["quire-demo"], config), config)


def floor(arguments: argparse.Namespace) -> uvicorn.Server:
    """uvicorn with the least that sends as much."""
    memory = np.ones(1 if arguments.warm else _COLD)
    waiting: list[asyncio.Future[None]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await receive()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        loop = asyncio.get_running_loop()
        for _ in range(arguments.tokens):
            turn = loop.create_future()
            waiting.append(turn)
            await turn
            await send({"type": "http.response.body", "body": _EVENT, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    def wake() -> None:
        turns, waiting[:] = [*waiting], []
        for turn in turns:
            turn.set_result(None)

    def model(loop: asyncio.AbstractEventLoop) -> None:
        while True:
            time.sleep(arguments.step_ms / 1000)
            memory.sum()
            if waiting:
                loop.call_soon_threadsafe(wake)

    class Floor(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            loop = asyncio.get_running_loop()
            threading.Thread(target=model, args=(loop,), daemon=True, name="quire-engine").start()

    protocol = cast(type[asyncio.Protocol], partial(ClientConnection, Connections(4096, 30.0)))
    return Floor(
        uvicorn.Config(
            app, port=0, lifespan="off", log_config=None, http=protocol, ws="none", backlog=2048
        )
    )


def child(arguments: argparse.Namespace) -> None:
    """Serve; tell on stdout what port it is, and for each line on stdin what threads have taken."""
    server = {"server": serve, "floor": floor}[arguments.child](arguments)

    def tell() -> None:
        while not server.started:
            time.sleep(0.01)
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        for _ in sys.stdin:
            print(json.dumps(_taken()), flush=True)
        server.should_exit = True

    threading.Thread(target=tell, daemon=True).start()
    sys.setswitchinterval(0.0005)  # as ``quire serve`` has it
    server.run()


def _taken() -> dict[str, float]:
    """Processor seconds of the event loop, those of them in the kernel, and the engine's."""
    names = {"MainThread": "loop", "quire-engine": "engine"}
    taken = {}
    for thread in threading.enumerate():
        if thread.name in names:
            place = Path(f"/proc/self/task/{thread.native_id}")
            name = names[thread.name]
            taken[name] = int((place / "schedstat").read_text().split()[0]) / 1e9
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            taken[f"{name}, in the kernel"] = int(fields[12]) / os.sysconf("SC_CLK_TCK")
    return taken


@contextmanager
def serving(kind: str, given: list[str]) -> Iterator[tuple[int, Callable[[], dict[str, float]]]]:
    """Its port, and what asks for its threads' time."""
    process = subprocess.Popen(
        [sys.executable, __file__, *given, "--child", kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    ask, told = process.stdin, process.stdout

    def taken() -> dict[str, float]:
        ask.write("\n")
        ask.flush()
        found: dict[str, float] = json.loads(told.readline())
        return found

    try:
        yield int(told.readline()), taken
    finally:
        ask.close()
        process.wait(60)


def stream(port: int, streams: int, tokens: int) -> int:
    """Read so many streams to their ends; how many events came."""
    body = {"model": "quire-demo", "prompt": [5, 6, 7], "max_tokens": tokens, "stream": True,
            "temperature": 0, "ignore_eos": True}  # fmt: skip
    content = json.dumps(body).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(content)
    )
    events = 0
    with selectors.DefaultSelector() as open_ones:
        for _ in range(streams):
            one = socket.create_connection(("127.0.0.1", port))
            one.sendall(head + content)
            open_ones.register(one, selectors.EVENT_READ)
        while open_ones.get_map():
            for key, _ in open_ones.select():
                one = cast(socket.socket, key.fileobj)
                came = one.recv(2**16)
                events += came.count(b"data: {")
                if not came:
                    open_ones.unregister(one)
                    one.close()
    return events


def measure(kind: str, given: list[str], arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Microseconds of processor time a token, a figure a round."""
    streams, tokens = arguments.streams, arguments.tokens
    found: dict[str, list[float]] = {}
    with serving(kind, given) as (port, taken):
        stream(port, streams, 10)
        for _ in range(arguments.rounds):
            before = taken()
            events = stream(port, streams, tokens)
            after = taken()
            found.setdefault("events a token", []).append(events / (streams * tokens))
            for name, seconds in after.items():
                micros = (seconds - before[name]) * 1e6 / (streams * tokens)
                found.setdefault(name, []).append(micros)
    return found


def main() -> None:
    parser = flags_of(__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=3.0)
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    parser.add_argument("--stream-interval", type=int, default=1)
    parser.add_argument("--warm", action="store_true", help="leave the caches as they are")
    parser.add_argument("--rounds", type=int, default=5, help="the least of so many (%(default)s)")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    parser.add_argument("--child", choices=["server", "floor"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        return child(arguments)
    given = sys.argv[1:]
    found = {kind: measure(kind, given, arguments) for kind in ("floor", "server")}
    least = {  # what disturbs a measurement of processor time adds to it
        kind: {name: round(min(values), 2) for name, values in figures.items()}
        for kind, figures in found.items()
    }
    if arguments.json:
        print(json.dumps({**least, "machine": machine_facts()}))
        return
    for kind, figures in least.items():
        print(f"{kind}: " + ", ".join(f"{name} {value:.2f}" for name, value in figures.items()))
    print("microseconds of processor time a token, but for the events")


if __name__ == "__main__":
    main()
