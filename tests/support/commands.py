"""Every command of ``quire`` with its flags, those of other packages too."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from quire.tools.cli import _parser
from quire.tools.commands.command import COMMANDS


def flags_of_commands() -> dict[str, set[str]]:
    """By "serve", "bench throughput" and the like: the flags, as they are written."""
    return {name: set(one._option_string_actions) for name, one in _commands()}


def _commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for name, one in _below(_parser([])).items():
        if name in COMMANDS:
            one = _below(_parser([name]))[name]  # which loads it
        yield name, one
        yield from ((f"{name} {inner}", two) for inner, two in _below(one).items())


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    kinds = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    found = next(kinds, None)
    return {} if found is None else dict(found.choices)
