"""``quire replay``: shows a recording on the page, without an engine or a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from quire.tools.commands.command import Command
from quire.tools.commands.flags import add_flag
from quire_lab.commands.text import seconds

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


def add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="recording (quire record, or the page)")
    text = "port on this machine, which others cannot reach; 0: any free port"
    add_flag(parser, "port", "int", 8010, text, value="PORT")


def replay(arguments: argparse.Namespace) -> int:
    """Serve it until a signal ends it. ConfigError if the file is not a recording."""
    import uvicorn

    from quire.http.guards.listening import bound
    from quire_lab.recording import check

    path = Path(arguments.file)
    told = check(path)
    cut = ", cut off" if told.cut else ""
    with bound("127.0.0.1", arguments.port) as sockets:
        port = sockets[0].getsockname()[1]
        text = f"{told.header['model']}, {seconds(told.seconds)}, {told.num_blocks:,} blocks{cut}"
        print(f"{text}: http://127.0.0.1:{port} (Press CTRL+C to quit)", flush=True)
        config = uvicorn.Config(
            replay_app(path), access_log=False, log_level="warning", lifespan="off", ws="none"
        )
        uvicorn.Server(config).run(sockets)
    return 0


def replay_app(recording: Path) -> Starlette:
    """The page over a recording, for browsers of this machine: no engine is behind it."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import FileResponse
    from starlette.routing import Route

    from quire.http.guards.keys import PAGE
    from quire.http.live.page import HEADERS, INDEX, Files

    name = "recording.quire"
    files = Files(name)

    async def front(http: Request) -> Response:
        return files.answer(http, INDEX)

    async def file(http: Request) -> Response:
        return files.answer(http, http.path_params["name"])

    async def content(http: Request) -> Response:
        return FileResponse(recording, media_type="application/gzip", headers=HEADERS)

    routes = [Route("/", front), Route(PAGE + "{name:path}", file), Route(f"/{name}", content)]
    # Else another site's name, once it points here, would let its scripts read the recording.
    only_here = Middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1"])
    return Starlette(routes=routes, middleware=[only_here])


COMMAND = Command(add_replay, replay, serves=True)
