"""Flags made from the fields of settings and sampling parameters, and read back into them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from typing import Any

from quire.core.errors import ConfigError
from quire.core.protocol.parameters import description
from quire.core.protocol.sampling_params import SamplingParams
from quire.engine.config import EngineConfig
from quire.http.config.server import ServerConfig
from quire.tools.commands.parser import Parser

_SAMPLING_FIELDS = [field for field in fields(SamplingParams) if field.metadata["flag"]]


def add_flag(group: Any, name: str, kind: str, default: Any, text: str) -> None:
    """One flag for one field of a dataclass, its type read from the annotation."""
    names = ["--" + name.replace("_", "-"), *_SHORT.get(name, ())]
    if default not in (None, ()):
        text += " (%(default)s)"
    if kind.startswith("bool"):
        group.add_argument(
            *names, action=argparse.BooleanOptionalAction, default=default, help=text
        )
    elif "Sequence[str]" in kind:
        group.add_argument(*names, action="append", default=[], metavar="TEXT", help=text)
    else:
        number = float if kind.startswith("float") else _integer
        # Sizes such as 4GiB, and JSON, are read by the config itself.
        json = kind.startswith(("Mapping", "StructuredOutputs"))
        itself = json or kind.startswith("str") or name.endswith("_bytes")
        parse = str if itself else number
        metavar = "JSON" if json else _METAVARS[parse]
        group.add_argument(*names, type=parse, default=default, metavar=metavar, help=text)


def _integer(text: str) -> int:
    """A number, or with an ending as vLLM has them: 32k is 32,000, and 32K 32,768."""
    factor = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:])
    try:
        return int(text) if factor is None else int(float(text[:-1]) * factor)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


_SHORT = {"tensor_parallel_size": ("-tp",)}
_METAVARS: Mapping[Callable[[str], Any], str] = {str: "TEXT", float: "X", _integer: "N"}


# -- of the engine -----------------------------------------------------------------------------


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    for field in fields(EngineConfig):
        if field.name != "model":
            _add_setting(group, field)


def _add_setting(group: Any, field: Field[Any]) -> None:
    """For a list, one flag with several values, or several flags."""
    text = field.metadata["help"]
    if "Sequence[str]" in str(field.type):
        flag = "--" + field.name.replace("_", "-")
        group.add_argument(flag, nargs="+", action="extend", default=[], metavar="TEXT", help=text)
    else:
        add_flag(group, field.name, str(field.type), field.default, text)


def help_of(name: str) -> str:
    return next(str(f.metadata["help"]) for f in fields(EngineConfig) if f.name == name)


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of EngineConfig, as the flags have them."""
    return {field.name: getattr(arguments, field.name) for field in fields(EngineConfig)}


def check_no_engine_flags(
    arguments: argparse.Namespace, but: Sequence[str] = (), what: str = "a url"
) -> None:
    """ConfigError for a flag that an engine elsewhere does not hear of, ``but`` for some."""
    chosen = options(arguments)
    for field in fields(EngineConfig):
        if field.name in ("model", *but):
            continue
        if (chosen[field.name] or None) != (field.default or None):
            raise ConfigError(f"{field.name} does nothing with {what}: give it to the server")


def engine_options(argv: Sequence[str]) -> dict[str, Any]:
    """The engine's options from command-line flags, [MODEL] first, as the subcommands take them."""
    parser = Parser(usage="[MODEL] [engine flags]")
    parser.add_argument("model", nargs="?", metavar="MODEL", help=help_of("model"))
    add_engine_flags(parser)
    return options(parser.parse_args(argv))


# -- of the server -----------------------------------------------------------------------------


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    for field in fields(ServerConfig):
        _add_setting(group, field)


def server_config(arguments: argparse.Namespace) -> ServerConfig:
    """The fields of ServerConfig, as the flags have them. ConfigError for one out of range."""
    names = [field.name for field in fields(ServerConfig)]
    return ServerConfig(**{name: getattr(arguments, name) for name in names})


# -- of sampling -------------------------------------------------------------------------------


def add_sampling_flags(
    parser: argparse.ArgumentParser, max_tokens: int | None, leave_out: Sequence[str] = ()
) -> None:
    group = parser.add_argument_group("sampling", "Left out, they are the model's own defaults.")
    for field in _SAMPLING_FIELDS:
        if field.name not in leave_out:
            default = max_tokens if field.name == "max_tokens" else None
            add_flag(group, field.name, str(field.type), default, description(field))


def sampling_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters that were given; max_tokens in any case, for None is no limit."""
    chosen = {field.name: getattr(arguments, field.name, None) for field in _SAMPLING_FIELDS}
    given = {name: value for name, value in chosen.items() if value is not None and value != []}
    return {**given, "max_tokens": arguments.max_tokens}
