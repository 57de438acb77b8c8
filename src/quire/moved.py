"""Where documented names were imported from before, for one more release."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

MOVED: Mapping[str, tuple[str, ...]] = {
    "quire.config": ("quire.engine.config", "quire.http.config.server"),
    "quire.core.protocol": ("quire.text.params",),  # what is still there, is found there
    "quire.errors": ("quire.core.errors",),
    "quire.memory": ("quire.core.memory",),
    "quire.simulation": ("quire_lab.simulation",),
    "quire.workload": ("quire_lab.workload", "quire.engine.traces.request"),
}
"""A module's new places; a name is looked for in one after the other."""


class OldPlaces(MetaPathFinder, Loader):
    """Finds modules of MOVED: each name that is taken from one says where it is now."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in MOVED:
            return None
        there = PathFinder.find_spec(name, path, target)
        if there is None or there.origin is None:
            return ModuleSpec(name, self)
        there.loader = _Left(name, there.origin)
        return there

    def exec_module(self, module: ModuleType) -> None:
        _look_elsewhere(module)


class _Left(SourceFileLoader):
    """Of a module that some names have left."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _look_elsewhere(module)


def _look_elsewhere(module: ModuleType) -> None:
    old = module.__name__

    def look(name: str) -> object:
        if not name.startswith("__"):
            for place in MOVED[old]:
                new = importlib.import_module(place)
                if hasattr(new, name):
                    warnings.warn(
                        f"{old}.{name} is {place}.{name} now; the old name goes with the "
                        "next release",
                        DeprecationWarning,
                        stacklevel=2,
                    )
                    return getattr(new, name)
        raise AttributeError(f"module {old!r} has no attribute {name!r}")

    module.__getattr__ = look  # type: ignore[method-assign]


def install() -> None:
    """Look in old places before others do: of some modules a part is still there."""
    if not any(isinstance(finder, OldPlaces) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldPlaces())
