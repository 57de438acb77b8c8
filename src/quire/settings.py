"""What the settings of engine and server have in common: how they are declared and checked."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields
from typing import Any

from quire.core.errors import ConfigError


def setting(
    default: Any,
    text: str,
    *,
    section: str = "",
    choices: Sequence[object] = (),
    low: float | None = None,
    high: float | None = None,
    unit: str | None = None,
    value: str | None = None,
    common: bool = False,
    secret: bool = False,
) -> Any:
    """A field of a config. Checks, flags, ``--help`` and docs are made of its metadata.

    section: what it is about; flags are grouped by it.
    choices: all values that it may have, beside None where its type allows that.
    low, high: the range of a number, both ends in.
    unit: of a number: ``seconds``, ``tokens``, ``GiB``; ``bytes`` may be written as 512MiB.
    value: what any other value names: ``FILE``, ``URL``.
    common: one of the few that ``--help`` shows first.
    secret: ``repr`` leaves it out.
    """
    metadata = {
        "help": text,
        "section": section,
        "choices": tuple(choices),
        "low": low,
        "high": high,
        "unit": unit,
        "value": value,
        "common": common,
    }
    return field(default=default, metadata=metadata, repr=not secret)


def check_settings(config: Any, prefix: str = "") -> None:
    """Check each field of a config by its metadata; read sizes and JSON objects from their text.

    ConfigError names the field, after ``prefix``.
    """
    for own in fields(config):
        name, kind, declared = prefix + own.name, str(own.type), own.metadata
        value, low, high = getattr(config, own.name), declared["low"], declared["high"]
        if value is None and "None" in kind:
            continue
        if declared["choices"]:
            check_one_of(name, value, declared["choices"])
        elif kind.startswith("Mapping"):
            object.__setattr__(config, own.name, parse_object(name, value) or None)
        elif declared["unit"] == "bytes":
            object.__setattr__(config, own.name, size := parse_bytes(value, name))
            check_count(name, size, low, high)
        elif value is None and kind.startswith(("int", "float", "str")):
            raise ConfigError(f"{name} must not be None: leave it out for {own.default!r}")
        elif kind.startswith("int"):
            check_count(name, value, low, high)
        elif kind.startswith("float") and low is not None and high is not None:
            check_number(name, value, low, high, declared["unit"] or "")
        else:
            _check_kind(name, value, kind)


_KINDS: Sequence[tuple[str, type | tuple[type, ...], str]] = (
    ("bool", bool, "true or false"),
    ("str", (str, os.PathLike), "a text"),
    ("Sequence", Sequence, "a list of texts"),
)


def _check_kind(name: str, value: object, declared: str) -> None:
    """ConfigError for a text that would count as true, or whatever is no text at all."""
    for kind, types, words in _KINDS:
        if declared.startswith(kind) and not isinstance(value, types):
            raise ConfigError(f"{name} must be {words}, got {value!r}")


def check_known(kind: type, options: Iterable[object], prefix: str = "") -> None:
    """ConfigError for one that is no field of ``kind``; it names its neighbour."""
    known = [own.name for own in fields(kind)]
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
            raise ConfigError(f"{prefix}unknown option {name}{hint}")


def check_count(name: str, value: object, low: float | None = 1, high: float | None = None) -> None:
    """ConfigError unless the value is absent or a whole number in the range."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not _within(value, low, high):
        limit = "" if low is None else f" of at least {low}"
        limit = limit if high is None else f" from {low} to {high}"
        raise ConfigError(f"{name} must be an integer{limit}, got {value!r}")


def check_number(name: str, value: object, low: float, high: float, unit: str) -> None:
    """ConfigError unless the value is absent or a number in the range, both ends in."""
    if value is None:
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not _within(value, low, high):
        ends = (f"{int(end)}" if end == int(end) else f"{end:.4g}" for end in (low, high))
        limit = f"from {' to '.join(ends)} {unit}".rstrip()
        raise ConfigError(f"{name} must be {limit}, got {value!r}")


def _within(value: Any, low: float | None, high: float | None) -> bool:
    return (low is None or low <= value) and (high is None or value <= high)


def check_one_of(name: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        raise ConfigError(f"{name} must be one of {', '.join(map(str, known))}; got {value!r}")


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
        value = _read_json(name, value)
    if not isinstance(value, Mapping | None):
        raise ConfigError(f"{name} must be a JSON object, got {value!r}")
    return dict(value or {})


def parse_texts(name: str, values: Sequence[str]) -> tuple[str, ...]:
    """Texts one by one, or all of them in one JSON list, as vLLM's flags have them."""
    if isinstance(values, str):
        values = [values]
    if len(values) == 1 and str(values[0]).startswith("["):
        values = _read_json(name, str(values[0]))
    if not all(isinstance(value, str) and value for value in values):
        raise ConfigError(f"{name} must hold texts, got {values!r}")
    return tuple(values)


def _read_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not valid JSON: {error}") from None


_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_bytes(value: int | str, name: str = "") -> int:
    """A number of bytes: 1048576, "512MiB", "4G" (units of 1024). ``name``: of the setting."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
    if match is None or isinstance(value, (bool, float)):
        what = f"{name}: " if name else ""
        raise ConfigError(f"{what}not a size in bytes: {value!r} (examples: 536870912, 512MiB, 4G)")
    return int(float(match[1]) * _UNITS[match[2]])
