"""``quire serve``: an engine behind OpenAI's HTTP API."""

from __future__ import annotations

import argparse

from quire.commands.flags import add_engine_flags, add_server_flags, help_of, options, server_config
from quire.config import EngineConfig


def add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help=help_of("model"))
    add_engine_flags(parser)
    add_server_flags(parser)


def serve(arguments: argparse.Namespace) -> int:
    """Load the model and serve it until interrupted."""
    # What the flags say is checked, and the port taken, before a model is loaded.
    config, engine_config = server_config(arguments), EngineConfig.create(options(arguments))

    from quire.server import bound, create_app, run_server

    with bound(config.host, config.port) as sockets:
        from quire.build import build_engine

        engine, capacity = build_engine(engine_config)
        print(capacity.describe(), flush=True)
        names = config.served_model_name or [capacity.model_name]
        try:
            run_server(create_app(engine, names, config), sockets)
        finally:
            engine.close()
    return 0
