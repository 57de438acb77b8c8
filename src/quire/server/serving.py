"""Running the app under uvicorn."""

from __future__ import annotations

import contextlib
import logging
import socket

import uvicorn
from fastapi import FastAPI

from quire.server.listening import listen

logger = logging.getLogger(__name__)

_SLOWEST_CLIENT = 5  # seconds to take the last bytes at shutdown


class Server(uvicorn.Server):
    """uvicorn for one Quire app. At shutdown the engine stops first.

    uvicorn would wait for every running answer to end; so it is told to the clients at once that
    no more is coming.
    """

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                lifespan="on",
                log_config=None,
                timeout_graceful_shutdown=_SLOWEST_CLIENT,
            )
        )
        self._app = app

    @property
    def port(self) -> int:
        """The port listened on, once started; the system picks one for port 0."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets is not None and self.started:  # uvicorn tells only of those that it makes
            host, port = sockets[0].getsockname()[:2]
            place = f"[{host}]" if ":" in host else host
            logger.info("Quire running on http://%s:%d (Press CTRL+C to quit)", place, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.state.engine.stop()
        await super().shutdown(sockets)
        for connection in self.server_state.connections:  # of clients that still have not read
            connection.transport.abort()


def run_server(app: FastAPI, sockets: list[socket.socket]) -> None:
    """Serve on bound sockets until interrupted. Logs to stderr, unless logging is configured."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    listen(sockets)
    host, port = sockets[0].getsockname()[:2]
    with contextlib.suppress(KeyboardInterrupt):  # which uvicorn raises again once it has ended
        Server(app, host, port).run(sockets)
