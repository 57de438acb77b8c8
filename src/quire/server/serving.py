"""Running the app under uvicorn."""

from __future__ import annotations

import contextlib
import logging
import socket

import uvicorn
from fastapi import FastAPI

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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.state.engine.stop()
        await super().shutdown(sockets)
        for connection in self.server_state.connections:  # of clients that still have not read
            connection.transport.abort()


def run_server(app: FastAPI, host: str, port: int) -> None:
    """Serve until interrupted. Logs to stderr, unless logging is configured already."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    with contextlib.suppress(KeyboardInterrupt):  # which uvicorn raises again once it has ended
        Server(app, host, port).run()
