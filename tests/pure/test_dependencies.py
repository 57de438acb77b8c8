"""What is imported is declared in pyproject.toml, not left to what others happen to bring."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import quire

tomllib = pytest.importorskip("tomllib")  # since Python 3.11

SOURCE = Path(quire.__file__).parent
PROJECT = SOURCE.parents[1] / "pyproject.toml"
OPTIONAL = {
    "matplotlib": "reports",
    "triton": "gpu",
    "ray": "ray",
    "opentelemetry": "otel",
}  # by the extra that brings them
IMPORTED_AS = {"pyyaml": "yaml", "pyzmq": "zmq"}
NOT_IMPORTED = {"httptools", "uvloop"}  # uvicorn looks for them


def imported_packages(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)


def names(requirements: Iterable[str]) -> set[str]:
    found = {re.split(r"[^\w-]", one)[0].replace("-", "_") for one in requirements}
    return {IMPORTED_AS.get(name, name) for name in found}


@pytest.mark.skipif(not PROJECT.exists(), reason="Quire runs without its sources")
def test_what_is_imported_is_declared() -> None:
    found = {name for file in SOURCE.rglob("*.py") for name in imported_packages(file)}
    third_party = found - set(sys.stdlib_module_names) - {"quire"}
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    assert names(project["dependencies"]) - NOT_IMPORTED == third_party - OPTIONAL.keys()
    for package, extra in OPTIONAL.items():
        brought = names(project["optional-dependencies"][extra])
        assert any(name.startswith(package) for name in brought)
