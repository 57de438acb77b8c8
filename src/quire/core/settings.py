"""What the settings of engine and server have in common: how they are declared and checked."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields
from typing import Any

from quire.core.errors import ConfigError


def setting(default: Any, text: str, *, secret: bool = False) -> Any:
    """A field of a config; flags, ``--help`` and docs are made of its metadata.

    secret: ``repr`` leaves it out.
    """
    return field(default=default, metadata={"help": text}, repr=not secret)


def check_known(kind: type, options: Iterable[object], prefix: str = "") -> None:
    """ConfigError for one that is no field of ``kind``; it names its neighbour."""
    known = [own.name for own in fields(kind)]
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
            raise ConfigError(f"{prefix}unknown option {name}{hint}")


def check_count(name: str, value: object, low: int = 1, high: int | None = None) -> None:
    """ConfigError unless the value is absent or a whole number in the range."""
    if value is None:
        return
    in_range = isinstance(value, int) and low <= value and (high is None or value <= high)
    if isinstance(value, bool) or not in_range:
        limit = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ConfigError(f"{name} must be an integer {limit}, got {value!r}")


def check_one_of(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(f"{name} must be one of {', '.join(known)}; got {value!r}")


def check_number(name: str, value: object, low: float, high: float, unit: str) -> None:
    """ConfigError unless the value is absent or a number in the range, ``low`` and ``high`` in."""
    if value is None:
        return
    in_range = isinstance(value, (int, float)) and low <= value <= high
    if isinstance(value, bool) or not in_range:
        raise ConfigError(f"{name} must be from {low:g} to {high:g} {unit}, got {value!r}")


QUANTIZATIONS = ("int8", "int4", "w8a8", "w4a8")


def check_quantization(name: str, value: object) -> None:
    """ConfigError unless the value is absent or a way to round weights."""
    if value is not None and value not in QUANTIZATIONS:
        raise ConfigError(
            f"{name} must be one of {', '.join(QUANTIZATIONS)}; got {value!r}. Leave it out for a "
            "checkpoint that is quantised: its files say how"
        )


def parse_object(name: str, value: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """A mapping, or the JSON object that a text spells; none is empty."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{name} is no JSON: {error}") from None
    if not isinstance(value, Mapping | None):
        raise ConfigError(f"{name} must be a JSON object, got {value!r}")
    return dict(value or {})


def parse_texts(name: str, values: Sequence[str]) -> tuple[str, ...]:
    """Texts one by one, or all of them in one JSON list, as vLLM's flags have them."""
    if isinstance(values, str):
        values = [values]
    if len(values) == 1 and values[0].startswith("["):
        try:
            values = json.loads(values[0])
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{name} is no JSON: {error}") from None
    if not all(isinstance(value, str) and value for value in values):
        raise ConfigError(f"{name} must hold texts, got {values!r}")
    return tuple(values)


_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_bytes(value: int | str) -> int:
    """A number of bytes: 1048576, "512MiB", "4G" (units of 1024)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
    if match is None or isinstance(value, (bool, float)):
        raise ConfigError(f"not a size in bytes: {value!r} (examples: 536870912, 512MiB, 4G)")
    return int(float(match[1]) * _UNITS[match[2]])
