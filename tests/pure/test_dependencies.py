"""What a package imports is declared in its pyproject.toml, not left to what others bring."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import quire

tomllib = pytest.importorskip("tomllib")  # since Python 3.11

ROOT = Path(quire.__file__).parents[2]
PACKAGES = {"quire": ROOT, "quire_cluster": ROOT / "cluster", "quire_lab": ROOT / "lab"}
OPTIONAL = {
    "quire": {"triton": "gpu", "ray": "ray", "opentelemetry": "otel"},
    "quire_cluster": {"ray": "ray"},
    "quire_lab": {"matplotlib": "reports"},
}  # by the extra that brings them
IMPORTED_AS = {
    "pyyaml": "yaml", "pyzmq": "zmq",
    "quire_llm": "quire", "quire_llm_cluster": "quire_cluster",
}  # fmt: skip
NOT_IMPORTED = {"quire": {"httptools", "uvloop"}}  # uvicorn looks for them


def imported_packages(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)


def names(requirements: Iterable[str]) -> set[str]:
    found = {re.split(r"[^\w-]", one)[0].replace("-", "_") for one in requirements}
    return {IMPORTED_AS.get(name, name) for name in found}


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.skipif(not (ROOT / "lab").exists(), reason="Quire runs without its sources")
def test_what_is_imported_is_declared(package: str) -> None:
    folder, optional = PACKAGES[package], OPTIONAL[package]
    files = (folder / "src" / package).rglob("*.py")
    found = {name for file in files for name in imported_packages(file)} - {package}
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = names(project["dependencies"]) - NOT_IMPORTED.get(package, set())
    assert declared == found - set(sys.stdlib_module_names) - optional.keys()
    for name, extra in optional.items():
        brought = names(project["optional-dependencies"][extra])
        assert any(one.startswith(name) for one in brought)


@pytest.mark.skipif(not (ROOT / "lab").exists(), reason="Quire runs without its sources")
def test_all_packages_have_one_version() -> None:
    """And are installed with one, since each knows the others' insides."""
    for package, folder in PACKAGES.items():
        if package != "quire":
            text = (folder / "pyproject.toml").read_text(encoding="utf-8")
            project = tomllib.loads(text)["project"]
            assert project["version"] == quire.__version__
            ours = [one for one in project["dependencies"] if one.startswith("quire-")]
            assert ours and all(one.endswith(f"=={quire.__version__}") for one in ours)
