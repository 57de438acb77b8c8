"""A JSON object of another program, read field by field."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from reprlib import repr as short
from typing import Any, TypeVar

from quire.core.errors import ModelError
from quire.models.files import read_object

_T = TypeVar("_T")

WIDEST = 1 << 22
"""Numbers that are made of a token for all heads of a layer; published models have some 25,000."""

MOST_LAYERS = 10_000
"""Each is looked at."""

_MOST = 2**31 - 1  # of anything that is counted; no tensor has more rows, no text more tokens


class ConfigFields:
    """A JSON object whose fields are read by type, with errors that name file and field."""

    def __init__(
        self, values: Mapping[str, Any], source: str, sections: Mapping[str, str] | None = None
    ) -> None:
        """``sections``: where those come from that are of another file, by their names."""
        self.values = values
        self.source = source
        self._sections = sections or {}

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def get(self, name: str, kind: type[_T], default: _T | None = None) -> _T:
        """The field, or ``default`` where it is absent or null.

        Raises:
            ModelError: the field is of another type, or is absent and has no default.
        """
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise ModelError(f"{self.source}: {name} is missing")
            return default
        if kind is float and type(value) is int and abs(value) <= _MOST:
            value = float(value)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise self.wrong(name, kind.__name__)
        if isinstance(value, float) and not math.isfinite(value):
            raise self.wrong(name, "finite")
        return value

    def positive(self, name: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value = self.get(name, int, default)
        if value < 1:
            raise self.wrong(name, "at least 1", value)
        if value > _MOST:
            raise self.wrong(name, f"at most {_MOST:,}")
        return value

    def epsilon(self, name: str, default: float | None = None) -> float:
        """What is added to a variance; with less than nothing its root may be none."""
        value = self.get(name, float, default)
        if value < 0:
            raise self.wrong(name, "at least 0", value)
        return value

    def choice(self, name: str, allowed: Collection[str], default: str | None = None) -> str:
        """One of the ``allowed`` names."""
        value = self.get(name, str, default)
        if value not in allowed:
            names = ", ".join(sorted(allowed))
            raise ModelError(f"{self.source}: {name} is {short(value)}; supported: {names}")
        return value

    def wrong(self, name: str, wanted: str, value: object = None) -> ModelError:
        """The error for a field that is not as it must be, or a ``value`` in its place."""
        found = self.values.get(name) if value is None else value
        return ModelError(f"{self.source}: {name} must be {wanted}, but is {short(found)}")

    def section(self, name: str) -> ConfigFields:
        """A nested object; empty where it is absent or null."""
        source = self._sections.get(name, f"{self.source}: {name}")
        return ConfigFields(self.get(name, dict, {}), source)

    def holding(self, values: Mapping[str, Any]) -> ConfigFields:
        """The same object with other ``values``."""
        return ConfigFields(values, self.source, self._sections)


def read_fields(path: Path, overrides: Mapping[str, Any] | None = None) -> ConfigFields:
    """The fields of a file, under others. ModelError if it is missing or holds no JSON object."""
    return ConfigFields({**read_object(path), **(overrides or {})}, str(path))
