"""What a subcommand of ``quire`` is, and those that come with other packages."""

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
    run: does it, and gives the exit status.
    serves: others wait for this process, so it waits for nobody who reads its output.
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
    "simulate": Elsewhere("serve a workload on a virtual clock, no model", "lab"),
    "plan": Elsewhere("how many users fit, how fast, and what would change it", "lab"),
    "reproduce": Elsewhere(
        "the PagedAttention paper's experiments, simulated, beside what was published", "lab"
    ),
    "calibrate": Elsewhere(
        "measure how long steps take, here or elsewhere, for simulate and plan", "lab"
    ),
    "compare": Elsewhere("a recording of a server against its simulation: how far off, and why",
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
