"""The form of ``quire``'s subcommands, and those that come with other packages."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from quire.core.errors import ConfigError

GROUP = "quire.commands"
"""The group of entry points by which packages bring commands, each a ``Command``."""


class Command(NamedTuple):
    """A subcommand.

    add: declares its flags.
    run: runs it, and returns the exit status.
    serves: it serves others, and so must not wait for whoever reads its output.
    """

    name: str
    help: str
    add: Callable[[Any], None]
    run: Callable[[argparse.Namespace], int]
    serves: bool = False


class Elsewhere(NamedTuple):
    """A command of another package."""

    help: str
    package: str  # of this repository, whose extra has its name


ELSEWHERE: Mapping[str, Elsewhere] = {
    "deploy": Elsewhere("several engines behind one address, on Ray Serve", "cluster"),
    "simulate": Elsewhere("simulate serving a workload on a virtual clock, without a model", "lab"),
    "plan": Elsewhere("how many users fit, how fast, and what would change that", "lab"),
    "reproduce": Elsewhere(
        "simulate the PagedAttention paper's experiments, beside its published figures", "lab"
    ),
    "calibrate": Elsewhere(
        "measure how long steps take, here or on a server, for simulate and plan", "lab"
    ),
    "compare": Elsewhere("compare a server's recording with its simulation: how far off, and why",
                         "lab"),
}  # fmt: skip


def load(name: str) -> Command:
    """A command of ELSEWHERE. ConfigError: its package is not installed."""
    for entry in entry_points(group=GROUP, name=name):
        command: Command = entry.load()
        return command
    package = ELSEWHERE[name].package
    raise ConfigError(
        f"quire {name} comes with quire-{package}, which is not installed: "
        f"pip install 'quire[{package}]'"
    )
