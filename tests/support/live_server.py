"""The real app under uvicorn on a loopback port, over an engine whose model is scripted."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from openai import OpenAI

import quire
from quire.capabilities.misses import MissFinder
from quire.capabilities.pooling.pooler import Pooler
from quire.capabilities.sessions import Ring, SessionManager, SessionRules
from quire.core.memory import PagedAllocator
from quire.core.protocol import PreemptionMode
from quire.core.scheduling import Scheduler
from quire.engine.capabilities import Capabilities
from quire.engine.engine import Engine, ExecutorTraits
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.engine.waiting_room import QueueLimits
from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from quire.http.serving import Server
from quire.text.tokenizer import Tokenizer, load_tokenizer
from support.described import Described
from support.fake_model import WIDTH, FakeExecutor
from support.schedulers import make_scheduler
from support.scripted_executor import ScriptedExecutor

MODEL = "demo"
MAX_MODEL_LEN = 256
PATIENCE = 60.0  # seconds that anything here may take before it counts as hung

_DEMO = Path(quire.__file__).parent / "models/demo"
_VOCAB = json.loads((_DEMO / "config.json").read_text())["vocab_size"]
_EOS = json.loads((_DEMO / "config.json").read_text())["eos_token_id"]


def eventually(condition: Callable[[], bool], pause: float = 0.005) -> None:
    """Wait until the condition holds; fail if it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "this never became true"
        time.sleep(pause)


class LiveServer:
    """A running server, its engine, and clients for it."""

    def __init__(
        self,
        engine: Engine,
        executor: ScriptedExecutor,
        app: FastAPI,
        server: Server,
        thread: threading.Thread,
    ) -> None:
        self._app = app
        self.engine = engine
        self.executor = executor
        self.server = server
        self._thread = thread
        self.url = f"http://127.0.0.1:{server.port}"
        # Whatever they are answered is compared with what the app says of its answers.
        hooks = {"response": [Described(app).check]}
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE, event_hooks=hooks)
        http_client = httpx.Client(event_hooks=hooks)
        self.openai = OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, http_client=http_client
        )

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.input_processor.tokenizer

    def script(self, text: str) -> list[int]:
        """Make every output this text, and then the end of sequence; its tokens."""
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        self.executor.script = [*tokens, _EOS[0]]
        return tokens

    def complete(self, **body: Any) -> httpx.Response:
        body = {"model": MODEL, **body}
        return self.http.post("/v1/completions", json=body, timeout=self._patience)

    @property
    def _patience(self) -> float:
        """An answer whose steps are held takes as long as a test looks at it."""
        return PATIENCE * (10 if self.executor.held else 1)

    def chat(self, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "hello"}]
        body = {"model": MODEL, "messages": messages, **body}
        return self.http.post("/v1/chat/completions", json=body)

    def step_until(self, condition: Callable[[], bool]) -> None:
        """Let the held executor take one step after the other until the condition holds.

        Slowly: what the condition waits for should happen before a request has run to its end.
        """

        def step_or_done() -> bool:
            if condition():
                return True
            self.executor.let(steps=1)
            return False

        eventually(step_or_done, pause=0.02)

    def answer_until(self, condition: Callable[[], bool]) -> None:
        """The same, with a step only where somebody waits for what the engine says between two.

        So no request runs to its end meanwhile, however slow those are who ask.
        """
        asked = self._app.state.service.engine._calls

        def answered_or_done() -> bool:
            if condition():
                return True
            if asked and not self.executor.is_let:
                self.executor.let(steps=1)
            return False

        eventually(answered_or_done, pause=0.02)

    @property
    def num_aborted(self) -> int:
        """Requests that ended because their client left."""
        name = 'quire:request_success_total{finished_reason="abort",'
        lines = self.http.get("/metrics").text.splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(name))

    def is_idle(self) -> bool:
        """Whether no request is left, and every block has come back."""
        usage = self.engine.scheduler.allocator.usage()
        return not self.engine.has_work and usage.cached + usage.free == usage.capacity

    def metric(self, name: str, **labels: str) -> float:
        """A metric's value, from the exposition."""
        wanted = {"model_name": MODEL, **labels}
        text = ",".join(f'{key}="{wanted[key]}"' for key in sorted(wanted))
        lines = self.http.get("/metrics").text.splitlines()
        values = [line.split()[-1] for line in lines if _same_labels(line, name, text)]
        assert len(values) == 1, f"{name}{{{text}}} occurs {len(values)} times"
        return float(values[0])


class Post:
    """A completion request on a socket of its own, its answer perhaps never read."""

    def __init__(self, server: LiveServer, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        self.socket.connect(("127.0.0.1", server.server.port))
        self.socket.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(content), content)
        )

    def __enter__(self) -> Post:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def read_until(self, text: bytes) -> bytes:
        received = bytearray()
        while received.find(text, -(2**17)) < 0:
            chunk = self.socket.recv(2**16)
            assert chunk, f"the connection ended: {received[-1000:]!r}"
            received += chunk
        return bytes(received)


def _same_labels(line: str, name: str, text: str) -> bool:
    if not line.startswith(f"{name}{{"):
        return False
    labels = line[len(name) + 1 : line.rindex("}")]
    return ",".join(sorted(labels.split(","))) == text


def events(response: httpx.Response) -> list[Any]:
    """The stream's values; the [DONE] at its end is checked and left out."""
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert data[-1] == "[DONE]"
    return [json.loads(event) for event in data[:-1]]


def scripted_engine(
    num_blocks: int = 128,
    block_size: int = 4,
    max_num_seqs: int = 16,
    session_timeout: float = 0.0,
    max_num_waiting: int | None = None,
    chat_template: str | None = None,
    num_host_blocks: int = 0,
    max_model_len: int = MAX_MODEL_LEN,
    tokenizer: Tokenizer | None = None,
    fake: FakeExecutor | None = None,
    max_num_batched_tokens: int = 256,
    **scheduling: Any,
) -> tuple[Engine, ScriptedExecutor]:
    """An engine and a fake model that speaks in its words, the demo model's if no others.

    fake: what the script is written over, if not a model that reads all its keys.
    """
    tokenizer = tokenizer or load_tokenizer(_DEMO, chat_template)
    texts = [tokenizer.own_texts.named(token_id) for token_id in range(_VOCAB)]
    words = [i for i, text in enumerate(texts) if text[:1] == " " and text[1:].isalpha()]
    fake = fake or FakeExecutor(num_blocks, block_size, num_host_blocks)
    executor = ScriptedExecutor(fake, words)
    mode = PreemptionMode.SWAP if num_host_blocks else PreemptionMode.RECOMPUTE

    def schedule() -> Scheduler:
        allocator = PagedAllocator(num_blocks, block_size, num_host_blocks)
        return make_scheduler(
            allocator, max_num_seqs, max_num_batched_tokens, mode=mode, **scheduling
        )

    def afresh(capabilities: Capabilities) -> tuple[Scheduler, Capabilities]:
        executor.forget()
        return schedule(), capabilities._replace(speculation=None)

    input_processor = InputProcessor(
        tokenizer,
        ModelOutputs(_VOCAB, _EOS, Pooler(WIDTH, shorter=(2,))),
        max_model_len=max_model_len,
        seed=0,
    )
    engine = Engine(
        schedule(),
        executor,
        input_processor,
        ExecutorTraits(afresh=afresh),
        capabilities=Capabilities(
            SessionManager(
                SessionRules(session_timeout, max_model_len, ring=Ring(0, max_model_len))
            ),
            grammars=input_processor.grammars,
            misses=MissFinder(),
        ),
        queue=QueueLimits(max_num_waiting),
    )
    return engine, executor


@contextmanager
def live_server(
    engine_options: Mapping[str, Any] | None = None, **server_options: Any
) -> Iterator[LiveServer]:
    """A LiveServer in a thread, stopped at the end."""
    engine, executor = scripted_engine(**(engine_options or {}))
    # Unless a test is about the end, it need not wait for what it has left running.
    given = {"port": 0, "shutdown_timeout": 0, "strict_model_name": True, **server_options}
    config = ServerConfig(host="127.0.0.1", **given)
    app = create_app(engine, [MODEL], config)
    server = Server(app, config)
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        eventually(lambda: server.started)
        live = LiveServer(engine, executor, app, server, thread)
        with live.http, live.openai:
            yield live
    finally:
        executor.release()
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server does not stop"
