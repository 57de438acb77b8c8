"""``quire replay``: shows a recording on the page, without an engine or a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from quire.tools.commands.command import Command
from quire.tools.commands.flags import add_flag
from quire.tools.commands.text import seconds


def add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="recording (quire record, or the page)")
    text = "port on this machine, which others cannot reach; 0: any free port"
    add_flag(parser, "port", "int", 8010, text, value="PORT")


def replay(arguments: argparse.Namespace) -> int:
    """Serve it until a signal ends it. ConfigError if the file is not a recording."""
    import uvicorn

    from quire.http.guards.listening import bound
    from quire.http.live.page import replay_app
    from quire.tools.recording import check

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


COMMAND = Command(add_replay, replay, serves=True)
