"""``quire deploy``: several engines behind one address, on Ray Serve."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from dataclasses import fields, replace
from typing import Any

from quire.core.errors import ConfigError
from quire.engine.config import EngineConfig
from quire.engine.streams import last_words
from quire.http.config.server import ServerConfig
from quire.kernels.threads import usable_cpus
from quire.tools.commands.command import Command
from quire.tools.commands.flags import add_settings, help_of
from quire.tools.commands.parser import Parser
from quire_cluster.config import DeployConfig, DeploySettings


def add_deploy(parser: Parser) -> None:
    parser.add_config_file()
    parser.add_argument("model", nargs="?", metavar="MODEL", help=help_of("model"))
    add_settings(parser, [DeployConfig, EngineConfig, ServerConfig])


def deploy(arguments: argparse.Namespace) -> int:
    """Deploy the replicas and wait for a signal to end them; the exit status."""
    settings = DeploySettings.of(_given(arguments))
    check_room(settings)
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("quire deploy needs Ray Serve: pip install 'quire-llm[ray]'")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from quire.http.guards.last_resort import LastResort
    from quire.http.guards.listening import bound
    from quire_cluster.running import longest_end, run

    if settings.deploy.address is None:  # ports of other machines are unknown
        with bound(settings.server.host, settings.server.port) as sockets:
            port = sockets[0].getsockname()[1]
        settings = settings._replace(server=replace(settings.server, port=port))
    server = settings.server
    last_resort = LastResort(longest_end(server), longest_end(server, haste=True))
    last_resort.hear()
    left = run(settings, lambda text: print(text, flush=True))
    if left is not None:
        print(f"quire deploy: {left}", file=sys.stderr, flush=True)
        last_words()
        os._exit(1)  # without waiting for what is left
    return 0


def check_room(settings: DeploySettings) -> None:
    """ConfigError if this machine has too few CPUs for all replicas of a Ray of its own."""
    threads, most, cpus = settings.engine.threads or 1, settings.deploy.most, usable_cpus()
    if settings.deploy.address is None and threads * most > cpus:
        each = "1 thread" if threads == 1 else f"{threads} threads"
        raise ConfigError(
            f"replicas: {most} of {each} each need {threads * most} CPUs, and this process may "
            f"use {cpus}: lower replicas or threads, or join a cluster with --address"
        )


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    kinds = (EngineConfig, ServerConfig, DeployConfig)
    names = [field.name for kind in kinds for field in fields(kind)]
    return {name: getattr(arguments, name) for name in names}


COMMAND = Command(add_deploy, deploy, serves=True)
