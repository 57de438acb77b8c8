"""``quire serve``: serves an engine by OpenAI's HTTP API."""

from __future__ import annotations

import argparse
import logging
import os
import signal
from types import FrameType

from quire.core.errors import ConfigError
from quire.engine.config import EngineConfig
from quire.engine.streams import last_words
from quire.http.config.server import ServerConfig, check_together
from quire.tools.commands.command import Command
from quire.tools.commands.flags import (
    add_settings,
    help_of,
    options,
    server_config,
)
from quire.tools.commands.others import lost
from quire.tools.commands.others_flags import add_others_flags
from quire.tools.commands.parser import Parser

logger = logging.getLogger(__name__)

_LAST_STEP = 2.0  # seconds that rank 0 may need other ranks for, after its shutdown_timeout


def add_serve(parser: Parser) -> None:
    parser.add_config_file()
    parser.add_argument("model", nargs="?", metavar="MODEL", help=help_of("model"))
    parser.add_argument(
        "--model", "-m", "--hf-repo", "-hf", "-hfr", dest="named", metavar="MODEL",
        help="MODEL as a flag, under the names that vLLM and llama.cpp give it",
    )  # fmt: skip
    parser.add_argument(
        "--headless", action="store_true", help="start ranks on this machine, and no server; for "
        "machines with a --node-rank above 0",
    )  # fmt: skip
    add_settings(parser, [EngineConfig, ServerConfig])
    add_others_flags(parser)


def serve(arguments: argparse.Namespace) -> int:
    """Load the model and serve it until a signal ends it; the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):  # until the server handles them
        signal.signal(number, _leave)
    for line in lost(os.environ):
        logger.warning(line)
    if arguments.named is not None:
        if arguments.model not in (None, arguments.named):
            raise ConfigError(f"two models are named: {arguments.model} and {arguments.named}")
        arguments.model = arguments.named
    # Flags are checked and the port is bound before a model is loaded.
    config, engine_config = server_config(arguments), EngineConfig.create(options(arguments))
    check_together(config, engine_config)
    if arguments.headless != bool(engine_config.node_rank):
        raise ConfigError("headless is for machines with a node_rank above 0, and only for them")
    if arguments.headless:
        from quire.engine.assembly.ranks.node import run_node

        return run_node(engine_config, config.shutdown_timeout + _LAST_STEP)

    from quire.http.guards.last_resort import LastResort
    from quire.http.guards.listening import bound
    from quire.http.serving import longest_end, run_server, set_format

    set_format(config.log_format)
    last_resort = LastResort(longest_end(config))
    last_resort.hear()
    try:
        with bound(config.host, config.port) as sockets:
            from quire.http.application import build

            others = [] if engine_config.model else _real_models(engine_config.device)
            app, engine, capacity = build(engine_config, config)
            print("\n".join([capacity.describe(), *others]), flush=True)
            try:
                status = run_server(app, config, sockets, last_resort)
            finally:
                engine.close()
    except BaseException:  # the caller may go on running
        last_resort.close()
        raise
    if app.state.service.engine.at_work:
        # Python would wait for its threads, or tear down under them, and crash.
        last_words()
        os._exit(status)
    return status


def _real_models(device: str) -> list[str]:
    """What else could be served here, by the memory that is free before there is an engine."""
    from quire.execution.device import choose_device
    from quire.tools.commands.fitting import free_for_models, suggest

    is_gpu = choose_device(device).type == "cuda"
    memory, share = free_for_models(is_gpu)
    first = "This is the demonstration model, which knows nothing."
    return [first, *suggest(memory, share, is_gpu=is_gpu)]


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once, as nothing is served yet; this also ends process 1 of a container.

    An exception would be dropped if the signal comes within a destructor.
    """
    last_words()
    os._exit(128 + number)


COMMAND = Command(add_serve, serve, serves=True)
