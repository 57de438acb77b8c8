"""The subcommands of ``quire``: what each does, and where it is loaded from when it is called."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from quire.core.errors import ConfigError

GROUP = "quire.commands"
"""The group of entry points by which packages bring commands, each a ``Command``."""


class Command(NamedTuple):
    """A subcommand.

    add: declares its flags.
    run: runs it, and returns the exit status; None for one that has subcommands of its own.
    serves: it serves others, and so must not wait for the reader of its output.
    """

    add: Callable[[Any], None]
    run: Callable[[argparse.Namespace], int] | None
    serves: bool = False


class Listed(NamedTuple):
    """A command as ``quire --help`` shows it, before anything of it is loaded.

    package: of this repository, whose extra has its name, that brings it; "" for this one.
    """

    help: str
    package: str = ""


COMMANDS: Mapping[str, Listed] = {
    "serve": Listed("serve a model over HTTP, by OpenAI's API and others"),
    "generate": Listed("complete prompts"),
    "chat": Listed("talk with a model in the terminal"),
    "top": Listed("watch running servers: memory, queues, why requests wait"),
    "pull": Listed("download a model from Hugging Face"),
    "models": Listed("list downloaded models: which can be served, for how many users"),
    "doctor": Listed("describe this machine, its kernels, and what would make it faster"),
    "completion": Listed("write a script by which a shell completes commands and flags"),
    "deploy": Listed("serve with several engines behind one address, on Ray Serve", "cluster"),
    "simulate": Listed("simulate serving a workload on a virtual clock, without a model", "lab"),
    "plan": Listed("find how many users fit, how fast, and what would change that", "lab"),
    "reproduce": Listed(
        "repeat the PagedAttention paper's experiments, with its published figures", "lab"
    ),
    "calibrate": Listed(
        "measure how long steps take, here or on a server, for simulate and plan", "lab"
    ),
    "evaluate": Listed("what each form of a model loses and gains, on real text", "lab"),
    "bench": Listed("measure how fast a model is served", "lab"),
    "record": Listed("record what a running server's page shows in a file", "lab"),
    "replay": Listed("show a recording on the page, with a time slider", "lab"),
    "compare": Listed("compare a server's recording with its simulation: how far off, and why",
                      "lab"),
}  # fmt: skip

_NO_STORE = "models are files in Hugging Face's cache, which its own tools (hf cache) clear"
_NO_ACCOUNT = "Quire has no registry; `hf auth login` is Hugging Face's"
_OTHERS: Mapping[str, str] = {
    "run": "quire chat MODEL, or quire generate --model MODEL PROMPT",
    **dict.fromkeys(("list", "ls"), "quire models"),
    "ps": "quire top",
    "show": "quire models",
    "complete": "quire generate",
    "collect-env": "quire doctor",
    "run-batch": "quire serve, and quire bench throughput --url or any client of OpenAI's API",
    "launch": "quire serve",
    "stop": f"Ctrl-C, or kill: a server serves one model; {_NO_STORE}",
    "create": "quire serve with --chat-template and --override-generation-config",
    **dict.fromkeys(("rm", "cp"), _NO_STORE),
    **dict.fromkeys(("push", "signin", "signout", "login", "logout"), _NO_ACCOUNT),
}
"""Commands of vLLM and Ollama, and what there is in their place."""


def load(name: str) -> Command:
    """A command of COMMANDS. ConfigError: its package is not installed."""
    package = COMMANDS[name].package
    command: Command
    if not package:
        command = import_module(f"quire.tools.commands.{name}").COMMAND
        return command
    for entry in entry_points(group=GROUP, name=name):
        command = entry.load()
        return command
    raise ConfigError(
        f"quire {name} comes with quire-llm-{package}, which is not installed: "
        f"pip install 'quire-llm[{package}]'"
    )


def explain(name: str) -> str:
    """What to say of a command that is none."""
    if name in _OTHERS:
        return f"there is no command {name}; use {_OTHERS[name]}"
    close = get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
    return f"there is no command {name}" + (
        f"; did you mean {close[0]}?" if close else f"; there are {', '.join(COMMANDS)}"
    )
