"""Where documented names were imported from before, for one more release."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED: Mapping[str, tuple[str, ...]] = {
    "quire.config": ("quire.engine.config", "quire.http.config.server"),
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
        return ModuleSpec(name, self) if name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
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
    """Look in old places where nothing else finds a module."""
    if not any(isinstance(finder, OldPlaces) for finder in sys.meta_path):
        sys.meta_path.append(OldPlaces())
