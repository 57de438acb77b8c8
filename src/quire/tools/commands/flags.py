"""Flags made from the fields of settings and sampling parameters, and read back into them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError, ModelNotFoundError
from quire.engine.config import EngineConfig
from quire.http.config.server import ServerConfig
from quire.models.hub import split_file
from quire.text.params.parameters import description
from quire.text.params.sampling_params import SamplingParams
from quire.tools.commands.others import explained
from quire.tools.commands.parser import Parser

_SAMPLING_FIELDS = [field for field in fields(SamplingParams) if field.metadata["flag"]]
ALSO = {
    "tensor_parallel_size": ("-tp",),
    "quantization": ("-q",),
    "seed": ("-s",),  # llama.cpp's, as those below
    "threads": ("-t",),
    "served_model_name": ("-a", "--alias"),
    "chat_template": ("--chat-template-file",),
    "sse_keep_alive_interval": ("--sse-ping-interval",),
    "ssl_keyfile": ("--ssl-key-file",),
    "ssl_certfile": ("--ssl-cert-file",),
    "replicas": ("--num-replicas", "--decode-replicas"),
}
"""Other names of flags, by their settings."""

_MOST_SHOWN = 64  # characters of all choices; more are listed in the help
_COMMON = "settings used most"
_SECTIONS = (
    _COMMON, "replicas", "model", "device", "memory", "scheduling", "speculation", "adapters",
    "streaming sessions", "parallelism", "blocks outside the pool", "server", "API", "security",
    "observing",
)  # fmt: skip
"""The groups of flags, in the order in which help shows them."""


def add_flag(
    group: Any,
    name: str,
    kind: str,
    default: Any,
    text: str,
    *,
    value: str | None = None,
    several: bool = False,
) -> None:
    """A flag for a value of a type, given as it is annotated.

    value: what help calls it. several: a list may be given after one flag.
    """
    names = ["--" + name.replace("_", "-"), *ALSO.get(name, ())]
    text = (text + _shown(default, name)).replace("%", "%%")
    if kind.startswith("bool"):
        group.add_argument(
            *names, action=argparse.BooleanOptionalAction, default=default, help=text
        )
        return
    options: dict[str, Any] = {"type": str, "default": default, "metavar": value or "TEXT"}
    if "Sequence[str]" in kind:
        how = {"nargs": "+", "action": "extend"} if several else {"action": "append"}
        options.update(default=[], **how)
    elif kind.startswith(("Mapping", "StructuredOutputs")):  # the config itself reads JSON
        options.update(metavar="JSON")
    elif kind.startswith("float"):
        options.update(type=float, metavar=value or "X")
    elif kind.startswith("int") and not name.endswith("_bytes"):  # and sizes such as 4GiB
        options.update(type=_integer, metavar=value or "N")
    group.add_argument(*names, help=text, **options)


def _shown(default: object, name: str) -> str:
    """The default as help shows it; nothing for a switch that is off, or for no value."""
    match default:
        case None | False | "" | ():
            return ""
        case True:
            return " (default: on)"
        case int() if name.endswith("_bytes"):
            return f" (default: {default // 2**20}MiB)"
        case float():
            return f" (default: {default:g})"
        case _:
            return f" (default: {default})"


def _integer(text: str) -> int:
    """A number, or with an ending as in vLLM: 32k is 32,000, and 32K 32,768."""
    factor = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:])
    try:
        return int(text) if factor is None else int(float(text[:-1]) * factor)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None


# -- of settings -------------------------------------------------------------------------------


def add_setting(group: Any, declared: Field[Any], default: Any = None) -> None:
    """A flag for a field of a config. ``default``: another one than the field's."""
    text, choices = declared.metadata["help"], declared.metadata["choices"]
    value = value_of(declared)
    if choices and not value.startswith("{"):
        text = f"{text}; one of {', '.join(map(str, choices))}"
    if default is None:
        default = declared.default
    kind = str(declared.type)
    add_flag(group, declared.name, kind, default, text, value=value, several=True)


def value_of(declared: Field[Any]) -> str:
    """What help calls the value of a setting: its choices if they are few, its unit, its kind."""
    facts, kind = declared.metadata, str(declared.type)
    choices = ",".join(map(str, facts["choices"]))
    if choices and len(choices) <= _MOST_SHOWN:
        return f"{{{choices}}}"
    if facts["unit"] is not None:
        return str(facts["unit"] if facts["unit"] == "GiB" else facts["unit"].upper())
    kinds = {"int": "N", "float": "X", "Mapping": "JSON"}
    found = next((word for name, word in kinds.items() if kind.startswith(name)), "TEXT")
    return str(facts["value"] or found)


def add_settings(parser: Parser, kinds: Sequence[type], but: Sequence[str] = ("model",)) -> None:
    """Flags for the fields of configs: those used most in one group, others in one per section."""
    parser.explained = explained
    groups = {section: parser.add_argument_group(section) for section in _SECTIONS}
    for declared in (each for kind in kinds for each in fields(kind) if each.name not in but):
        section = _COMMON if declared.metadata["common"] else declared.metadata["section"]
        add_setting(groups[section], declared)


def add_engine_flags(parser: Parser) -> None:
    add_settings(parser, [EngineConfig])


def help_of(name: str) -> str:
    return next(str(f.metadata["help"]) for f in fields(EngineConfig) if f.name == name)


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of EngineConfig, as the flags give them.

    ModelNotFoundError for a path where nothing is: what loads models takes seconds to be loaded.
    """
    model = arguments.model
    if model is not None and model.startswith(("/", "./", "../")):
        path = Path(split_file(model)[0])
        if not path.exists() and not Path(model).exists():
            raise ModelNotFoundError(f"model {model}: there is no such file or directory", model)
    return {field.name: getattr(arguments, field.name) for field in fields(EngineConfig)}


def check_no_engine_flags(
    arguments: argparse.Namespace, but: Sequence[str] = (), what: str = "a url"
) -> None:
    """ConfigError for a flag that would not reach an engine elsewhere, ``but`` for some."""
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


def server_config(arguments: argparse.Namespace) -> ServerConfig:
    """The ServerConfig that the flags give. ConfigError for a value out of range."""
    names = [field.name for field in fields(ServerConfig)]
    return ServerConfig(**{name: getattr(arguments, name) for name in names})


# -- of sampling -------------------------------------------------------------------------------


def add_sampling_flags(
    parser: argparse.ArgumentParser, max_tokens: int | None, leave_out: Sequence[str] = ()
) -> None:
    group = parser.add_argument_group(
        "sampling", "A parameter that is left out has the model's own default."
    )
    for field in _SAMPLING_FIELDS:
        if field.name not in leave_out:
            default = max_tokens if field.name == "max_tokens" else None
            add_flag(group, field.name, str(field.type), default, description(field))


def sampling_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters that were given; always max_tokens, whose None means no limit."""
    chosen = {field.name: getattr(arguments, field.name, None) for field in _SAMPLING_FIELDS}
    given = {name: value for name, value in chosen.items() if value is not None and value != []}
    return {**given, "max_tokens": arguments.max_tokens}
