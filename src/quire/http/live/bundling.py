"""The page's files as one script, one style sheet or one page: no server is needed for that."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

from quire.http import page

_SUFFIXES = {".html", ".css", ".js", ".svg"}
_IMPORT = re.compile(r'^import \{( \w+(?:, \w+)* )\} from "(\.[\w./-]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|class|(?:async )?function\*?) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*|^.*\bimport(?:\(|\.meta).*", re.MULTILINE)


def page_sources() -> dict[str, str]:
    """The page's files as they are written, by path."""
    folder = Path(page.__path__[0])
    paths = sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES)
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in paths}


def script_of(sources: Mapping[str, str], entry: str) -> str:
    """One of the page's modules, with all that it imports."""
    return bundle({name: s for name, s in sources.items() if name.endswith(".js")}, entry)


def sheet_of(sources: Mapping[str, str]) -> str:
    """One style sheet; what all share comes first."""
    names = sorted((n for n in sources if n.endswith(".css")), key=lambda name: ("/" in name, name))
    return "\n".join(sources[name] for name in names)


def bundle(modules: Mapping[str, str], entry: str) -> str:
    """``entry`` and all that it imports, each before those that import it.

    Each becomes a function that is called at once, so that none sees another's names. Modules keep
    to two forms: ``import { a, b } from "./x.js";`` on a line, and ``export`` before a declaration.

    modules: sources by path. ValueError: another form, or an import of nothing, or in a circle.
    """
    return "\n".join(_Bundle(modules).add(entry).values())


class _Bundle:
    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules
        self._names: dict[str, str] = {}
        self._parts: dict[str, str] = {}  # by path, as they are to follow each other

    def add(self, path: str) -> dict[str, str]:
        """Add a module with all that it imports; the parts so far."""
        if path in self._parts:
            return self._parts
        if path in self._names or path not in self._modules:
            raise ValueError(f"{path}: there is no such module, or it imports itself")
        name = self._names[path] = f"module{len(self._names)}"
        source = _IMPORT.sub(
            lambda found: self._imported(path, *found.groups()), self._modules[path]
        )
        exported = ", ".join(found[1] for found in _EXPORT.finditer(source))
        source = _EXPORT.sub("", source)
        if other := _OTHER.search(source):
            raise ValueError(f"{path}: {other[0]}: not a form that can be bundled")
        self._parts[path] = (
            f"// {path}\nconst {name} = (() => {{\n{source}\nreturn {{ {exported} }};\n}})();"
        )
        return self._parts

    def _imported(self, path: str, names: str, where: str) -> str:
        other = posixpath.normpath(posixpath.join(posixpath.dirname(path), where))
        self.add(other)
        return f"const {{{names}}} = {self._names[other]};"
