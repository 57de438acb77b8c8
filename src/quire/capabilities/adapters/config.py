"""What settings say of adapters, as vLLM's flags have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from quire.core.errors import ConfigError

MOST_ADAPTERS = 4096
"""That are served, and that are kept in memory."""

_LONGEST_NAME = 256
_FIELDS = ("name", "path", "base_model_name")


@dataclass(frozen=True)
class LoraModule:
    """An adapter: what requests call it, and the directory that it is read from.

    base_model_name: what its card names as its parent; None: the model that is served.
    """

    name: str
    path: str
    base_model_name: str | None = None

    @classmethod
    def parse(cls, given: object) -> LoraModule:
        """NAME=DIRECTORY, or a JSON object of the fields. ConfigError: it is neither."""
        if isinstance(given, LoraModule):
            return given
        values: Any = given
        if isinstance(given, str) and given.lstrip().startswith("{"):
            try:
                values = json.loads(given)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"lora_modules: {given!r} is not valid JSON: {error}") from None
        elif isinstance(given, str):
            name, separator, path = given.partition("=")
            values = {"name": name, "path": path} if separator else None
        if not isinstance(values, Mapping) or not {"name", "path"} <= set(values) <= {*_FIELDS}:
            raise ConfigError(
                "lora_modules must hold NAME=DIRECTORY, or JSON objects with name, path and "
                f"perhaps base_model_name; got {given!r}"
            )
        for field, value in values.items():
            if not isinstance(value, str) or not value:
                raise ConfigError(f"lora_modules: {field} must be a text, got {value!r}")
        if problem := problem_with_name(values["name"]):
            raise ConfigError(f"lora_modules: {problem}")
        return cls(**values)


class AdapterShare(NamedTuple):
    """What adapters may take of an engine's memory, at most."""

    most_running: int
    most_kept: int
    max_rank: int
    bytes_each: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the adapters that are kept, and of one that is being read."""
        return (self.most_kept + 1) * self.bytes_each


def problem_with_name(name: str) -> str | None:
    """What keeps an adapter from being called so; None: nothing does."""
    if not name or len(name) > _LONGEST_NAME or not name.isprintable() or name != name.strip():
        return f"the name of an adapter has 1 to {_LONGEST_NAME} printable characters"
    return None
