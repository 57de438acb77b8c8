"""Running the app under uvicorn, from its first connection to the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import json
import logging
import math
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI

from quire.engine.streams import nobody_waits
from quire.http.config.server import ServerConfig, make_room
from quire.http.guards.connections import ClientConnection, Connections
from quire.http.guards.last_resort import LastResort
from quire.http.guards.listening import listen

_BACKLOG = 2048  # connections that the system holds until they are accepted
_SLOWEST_STEP = 2.0  # seconds for the step under way at shutdown
_SLOWEST_CLIENT = 1.0  # seconds to take the last bytes
_SLOWEST_CLOSING = 1.0  # seconds for all that is closed after that
_DEAD = 1.0  # seconds that /health tells of a dead engine before the process ends
_HASTE = 0.5  # seconds for either, after a second signal
_TICK = 0.02
_SWITCH = 0.0005  # seconds that the loop's thread waits, each time it wakes, for the engine's
_ACCEPTED = 16  # connections in a turn of the event loop, which takes one from each listener

logger = logging.getLogger(__name__)
_SELDOM = 1_000  # looks at what is not so young, until all is looked through in any case
_DUE = 10  # such looks: Python's own measure
_FEW = 64  # requests that wait, sequences that run, connections, and tasks that answer
_CROWD = 256  # connections, which leave some megabytes
_BLOCKS = 1_000  # that Python has allocated, which are as many objects as one of these
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_FACTS = ("request_id", "engine_request_id", "method", "path", "status", "duration_ms")


class Server(uvicorn.Server):
    """uvicorn for one Quire app.

    To end, it drains: it answers what it has begun to answer, refuses all else, and listens
    until that is done, so that health and metrics can be read. What has not ended after
    ``shutdown_timeout`` ends with an error. If the engine dies, the server ends by itself.

    last_resort: ends the process if all this takes longer than ``longest_end``.

    exit_status: 0, or 1 if the engine has died.
    """

    def __init__(
        self, app: FastAPI, config: ServerConfig, last_resort: LastResort | None = None
    ) -> None:
        assert config.max_connections is not None
        connections = Connections(config.max_connections, config.request_read_timeout)
        # uvicorn calls it as it calls the class.
        protocol = cast(type[asyncio.Protocol], partial(ClientConnection, connections))
        super().__init__(
            uvicorn.Config(
                app,
                host=config.host,
                port=config.port,
                lifespan="on",
                log_config=None,
                log_level=config.uvicorn_log_level,
                ssl_keyfile=config.ssl_keyfile,
                ssl_certfile=config.ssl_certfile,
                ssl_ca_certs=config.ssl_ca_certs,
                ssl_cert_reqs=config.ssl_cert_reqs,
                http=protocol,
                ws="none",
                backlog=_BACKLOG,
                timeout_graceful_shutdown=math.ceil(_SLOWEST_CLIENT),
            )
        )
        make_room(config.max_connections, _BACKLOG)
        self.exit_status = 0
        self._engine = app.state.service.engine
        self._drain = app.state.drain
        self._config = config
        self._deadline = math.inf  # to serve on
        self._kept = sys.getallocatedblocks()  # when nobody asked for anything
        self._last_resort = last_resort
        self._crowd = 0  # the most connections since memory was given back

    @property
    def port(self) -> int:
        """The port listened on, once started; the system picks one for port 0."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    # -- signals ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """From now on signals are the server's, after its end too, until the process has ended.

        None of them may cut short what is being closed then. One that ends the server is not
        raised again, as uvicorn does: the process has done what the signal wanted.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self.handle_exit)
            signal.signal(signal.SIGTERM, self.handle_exit)
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which nohup has set
                signal.signal(signal.SIGHUP, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal asks for the end, a second one for no delay."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._begin_last_resort()

    # -- the end ---------------------------------------------------------------------------

    async def on_tick(self, counter: int) -> bool:
        """Whether to go on to ``shutdown``; called ten times a second."""
        must_end = await super().on_tick(counter)
        living = self._num_living()
        collect(living)
        self._tidy(living)
        if not self._engine.healthy and not self.exit_status:
            logger.critical("the engine is dead; the server ends with status 1")
            self.exit_status = 1
            self._deadline = time.monotonic() + _DEAD
            self._begin_last_resort()
        elif must_end and not self._drain.begun:
            self._drain.begun = True
            self._deadline = time.monotonic() + self._config.shutdown_timeout
            text = "%d requests have %g seconds to end; a second signal ends them at once"
            logger.info(text, self._drain.running, self._config.shutdown_timeout)
        idle = self._drain.begun and not self._drain.running
        return idle or self.force_exit or time.monotonic() >= self._deadline

    def _tidy(self, living: int) -> None:
        """Give back what many connections have taken, once they have gone."""
        self._crowd = max(self._crowd, len(self.server_state.connections))
        if self._crowd > _CROWD and living <= _FEW:
            self._crowd = 0
            self._engine.give_memory_back()

    def _num_living(self) -> int:
        queue = self._engine.engine.scheduler.queue
        living: int = queue.num_waiting + queue.num_running_seqs
        # Of who has hung up there is still what works for him, until that is cancelled.
        living += len(self.server_state.connections) + len(self.server_state.tasks)
        if not living:
            self._kept = sys.getallocatedblocks()
        elif living <= _FEW:  # one answer that is being made, or one body, can have much as well
            living += max(0, sys.getallocatedblocks() - self._kept) // _BLOCKS
        return living

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._last_resort is not None:
            self._last_resort.hear()  # the event loop has set its own
        listeners = sockets and [one.dup() for one in sockets for _ in range(_ACCEPTED)]
        await super().startup(listeners)
        if sockets is not None and self.started:  # uvicorn tells only of those that it makes
            host, port = sockets[0].getsockname()[:2]
            _welcome(host, port, self._config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stopping = asyncio.ensure_future(self._engine.stop())
        await self._wait(stopping.done, _SLOWEST_STEP)
        stopping.cancel()
        await self._wait(self._delivered, _SLOWEST_CLIENT)
        for connection in list(self.server_state.connections):  # idle, or of those who do not read
            cast(ClientConnection, connection).cut()
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves this out then
            await self.lifespan.shutdown()

    def _begin_last_resort(self) -> None:
        if self._last_resort is not None:
            self._last_resort.begin()

    async def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        """Until the condition holds or the time is over, which a second signal shortens."""
        deadline = time.monotonic() + seconds
        while not condition() and (now := time.monotonic()) < deadline:
            if self.force_exit:
                deadline = min(deadline, now + _HASTE)
            await asyncio.sleep(_TICK)

    def _delivered(self) -> bool:
        """Whether clients have been sent all that they are to get."""
        connections = self.server_state.connections
        unsent = any(each.transport.get_write_buffer_size() for each in connections)
        return not (unsent or self._drain.running)


def set_level(name: str) -> None:
    """Of all that the server logs; the engine and what it loads have a level of their own."""
    level = logging.DEBUG if name == "trace" else logging.getLevelName(name.upper())
    for room in ("quire.http", "quire.access", "uvicorn"):
        logging.getLogger(room).setLevel(level)


def _welcome(host: str, port: int, config: ServerConfig) -> None:
    """Log where the server is, and who may use it."""
    scheme = "http" if config.ssl_certfile is None else "https"
    address = f"[{host}]" if ":" in host else host
    logger.info("Quire running on %s://%s:%d (Press CTRL+C to quit)", scheme, address, port)
    here = ipaddress.ip_address(host.partition("%")[0]).is_loopback
    if not here and not config.api_key:
        logger.warning(
            "anyone who reaches %s:%d may use this server, which needs no key: give it keys with "
            "--api-key-file, or let it listen on --host 127.0.0.1",
            address,
            port,
        )


def longest_end(config: ServerConfig) -> float:
    """Seconds from a signal to the end of the process, where nothing hangs; ``SLOWEST`` more where
    something does.
    """
    return config.shutdown_timeout + _SLOWEST_STEP + _SLOWEST_CLIENT + _SLOWEST_CLOSING


def run_server(
    app: FastAPI,
    config: ServerConfig,
    sockets: list[socket.socket],
    last_resort: LastResort | None = None,
) -> int:
    """Serve on bound sockets until a signal or the engine's death ends it; the exit status.

    Logs to stderr, unless logging is configured already, and waits for nobody who reads that.
    """
    logging.basicConfig(level=logging.INFO, format=TEXT)
    set_format(config.log_format)
    set_level(config.uvicorn_log_level)
    server = Server(app, config, last_resort)
    listen(sockets)
    keep_what_is_loaded()
    sys.setswitchinterval(_SWITCH)
    with nobody_waits():
        server.run(sockets)
    return server.exit_status


def keep_what_is_loaded() -> None:
    """Freeze what is loaded: to collect it would stop everything for 200 ms."""
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _SELDOM)


def collect(living: int) -> None:
    """Collect garbage, if that is due and few requests, sequences and connections live.

    A thousand requests that wait are some 200,000 objects: to look through them takes 100 ms, in
    which nobody else is heard. Where what is loaded has not been kept apart, Python collects.
    """
    kept_apart = gc.get_threshold()[2] >= _SELDOM
    if kept_apart and living <= _FEW and gc.get_count()[2] >= _DUE:
        gc.collect()


class JSONLines(logging.Formatter):
    """An object a line: what a text line has, what failed, and facts that its message holds."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: vars(record)[name] for name in _FACTS if name in vars(record)}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def set_format(name: str) -> None:
    """Of all that this process logs, warnings of Python's included: text or json."""
    logging.captureWarnings(True)
    formatter = JSONLines() if name == "json" else logging.Formatter(TEXT)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter)
