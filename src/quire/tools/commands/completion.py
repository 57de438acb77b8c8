"""``quire completion``: what a shell needs to complete commands and flags."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from quire.core.errors import ConfigError
from quire.tools.commands.command import COMMANDS, Command, load
from quire.tools.commands.parser import Parser

SHELLS = ("bash", "zsh", "fish")


def add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell", choices=SHELLS, help="bash: quire completion bash > "
        "~/.local/share/bash-completion/completions/quire; zsh: > a directory of $fpath/_quire; "
        "fish: > ~/.config/fish/completions/quire.fish",
    )  # fmt: skip


def completion(arguments: argparse.Namespace) -> int:
    """Print the shell's script."""
    import shtab

    paths = {"FILE": shtab.FILE, "DIRECTORY": shtab.DIRECTORY, "MODEL": shtab.FILE}
    whole = _whole()
    for action in _actions(whole):
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        if metavar.startswith("{"):  # the setting itself checks what it is given
            action.choices = metavar[1:-1].split(",")
        elif metavar in paths:
            action.complete = paths[metavar]  # type: ignore[attr-defined]  # shtab's way
    print(shtab.complete(whole, arguments.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The actions of all flags, those of subcommands too."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)


def _whole() -> Parser:
    """A parser with the flags of all commands that are installed."""
    parser = Parser(prog="quire")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, listed in COMMANDS.items():
        inner = commands.add_parser(name, help=listed.help)
        try:
            load(name).add(inner)
        except ConfigError:  # its package is not installed
            continue
    return parser


COMMAND = Command(add_completion, completion)
