"""The parser of every subcommand: it reads flags from a file, and explains what it cannot."""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from quire.core.errors import ConfigError

_MOST_CHARACTERS = 1 << 20  # of a file of flags
_HELP_AT, _WIDEST = 28, 102  # columns: where help begins, and where it ends at most
_MANY_FLAGS = 12  # more than this many are not listed in a usage


class _Help(argparse.HelpFormatter):
    """Help in lines that can be read, switches in one word, usage in one line."""

    def __init__(self, prog: str) -> None:
        columns = shutil.get_terminal_size().columns
        super().__init__(prog, max_help_position=_HELP_AT, width=min(columns, _WIDEST) - 2)

    def add_usage(
        self, usage: str | None, actions: Iterable[argparse.Action], *others: Any, **more: Any
    ) -> None:
        actions = list(actions)
        if usage is None and sum(bool(one.option_strings) for one in actions) > _MANY_FLAGS:
            usage = _short_usage(self._prog, actions)
        super().add_usage(usage, actions, *others, **more)

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if action.nargs == argparse.PARSER:  # whose commands are indented further
            self._action_max_length += 2

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Lines of a help text; flags in it stay whole."""
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = self._split_lines(text, width - len(indent))
        return "\n".join(indent + line for line in lines)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """--[no-]warm-up, and -tp, --tensor-parallel-size N, in every version of Python."""
        names = action.option_strings
        if not names:
            return super()._format_action_invocation(action)
        if isinstance(action, argparse.BooleanOptionalAction):
            return f"--[no-]{names[0][2:]}"
        shown = ", ".join(sorted(names, key=len))
        if action.nargs == 0:
            return shown
        return f"{shown} {self._format_args(action, action.dest.upper())}"


def _short_usage(prog: str, actions: Iterable[argparse.Action]) -> str:
    given = [one for one in actions if not one.option_strings and one.metavar]
    names = [f"[{one.metavar}{' ...' * (one.nargs == '*')}]" for one in given]
    return " ".join([prog, *names, "[flags]"])


class Parser(argparse.ArgumentParser):
    """Like argparse's, but dashes and underscores are the same, and unknown flags are explained."""

    reads_files = False

    def __init__(self, *args: Any, **options: Any) -> None:
        self.explained: Callable[[str], str] = lambda flag: ""  # what to say of one of others
        super().__init__(*args, **{"allow_abbrev": False, "formatter_class": _Help, **options})

    def add_config_file(self) -> None:
        """Give it a flag for a file that holds others."""
        self.reads_files = True
        self.add_argument(
            "--config", metavar="FILE", help="YAML file whose keys are flags; flags that are "
            "given on the command line win",
        )  # fmt: skip

    def parse_known_args(  # type: ignore[override]  # one overload of argparse's two is used
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        if args is not None and self.reads_files:
            args = [*args, *self._from_file(args)]
        if args is not None:
            args = self._gathered([_dashed(argument) for argument in args])
        found, unknown = super().parse_known_args(args, namespace)
        flag = next((one for one in unknown if one.startswith("-")), None)
        if flag is not None:
            self.error(self._explain(flag.partition("=")[0]))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Say what is wrong below one line of usage: the flags would fill a screen."""
        usage = _short_usage(self.prog, self._actions)
        self.exit(2, f"usage: {usage} ({self.prog} --help lists them)\nquire: error: {message}\n")

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """None: argparse would take -t for -tp even with allow_abbrev off."""
        return []

    def _gathered(self, args: Sequence[str]) -> list[str]:
        """--flag.key VALUE, as often as it comes, as one flag with a JSON object: vLLM's way."""
        others: list[str] = []
        objects: dict[str, dict[str, Any]] = {}
        rest = iter(args)
        for argument in rest:
            name, equals, value = argument.partition("=")
            flag, dot, key = name.partition(".")
            action = self._option_string_actions.get(flag)
            if not dot or action is None or action.metavar != "JSON":
                others.append(argument)
                continue
            inner = objects.setdefault(flag, {})
            *path, last = key.replace("-", "_").split(".")
            for step in path:
                inner = inner.setdefault(step, {})
                if not isinstance(inner, dict):
                    self.error(f"{flag}.{step} is given both as a whole and by its keys")
            inner[last] = _value(value if equals else next(rest, ""))
        for flag in objects:
            if any(other.partition("=")[0] == flag for other in others):
                self.error(f"{flag} is given both as a whole and by its keys")
        return [*others, *(f"{flag}={json.dumps(value)}" for flag, value in objects.items())]

    def _explain(self, flag: str) -> str:
        if text := self.explained(flag):
            return f"{flag} is not here; {text}"
        known = [name for name in self._option_string_actions if name.startswith("--")]
        close = difflib.get_close_matches(flag, known, n=3)
        close.sort(key=lambda name: sorted(name) != sorted(flag))  # two letters changed places
        return f"there is no flag {flag}" + (f"; did you mean {close[0]}?" if close else "")

    # -- the file --------------------------------------------------------------------------

    def _from_file(self, args: Sequence[str]) -> list[str]:
        """The file's flags that are not on the command line."""
        finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        finder.add_argument("--config")
        path = finder.parse_known_args(args)[0].config
        if path is None:
            return []
        given = {_dashed(argument).partition("=")[0].partition(".")[0] for argument in args}
        settings = _read_yaml(Path(path))
        model = settings.pop("model", None) or settings.pop("model-tag", None)
        if model is not None:
            self.set_defaults(model=str(model))
        found: list[str] = []
        for name, value in settings.items():
            flag = "--" + str(name).replace("_", "-")
            if flag not in self._option_string_actions:
                raise ConfigError(f"{path}: {self._explain(flag)}")
            off = f"--no-{flag[2:]}"
            if value is False and off not in self._option_string_actions:
                continue  # a switch that is left alone
            if not {flag, off} & given:
                found += _spelled(flag, value)
        return found


def _value(text: str) -> object:
    """The value of a text as JSON, or else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
        if len(text) > _MOST_CHARACTERS:  # a device may have no end
            raise ConfigError(f"config {path} has more than {_MOST_CHARACTERS:,} characters")
        settings = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigError(f"config {path} cannot be read: {reason}") from None
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise ConfigError(f"config {path} must hold keys and values, one for each flag")
    return settings


def _spelled(flag: str, value: object) -> Iterator[str]:
    """A flag with its value as on the command line."""
    match value:
        case None:
            return
        case bool():
            yield flag if value else f"--no-{flag[2:]}"
        case dict():
            yield f"{flag}={json.dumps(value)}"
        case list() if value:
            yield flag
            yield from map(str, value)
        case list():
            yield f"{flag}=[]"
        case _:
            yield f"{flag}={value}"


def _dashed(argument: str) -> str:
    """--max_model_len=5 as --max-model-len=5."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value
