"""The scripts in benchmarks/ name things that exist."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[3] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_benchmark_imports_what_there_is(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("quire"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                known = hasattr(module, alias.name)
                assert known or importlib.import_module(f"{node.module}.{alias.name}")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_benchmark_is_run_as_it_says(script: Path) -> None:
    """As a file it finds what lies beside it, as a module what is in the package; neither both."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    beside = any(SCRIPTS[0].with_name(f"{module}.py") in SCRIPTS for module in modules)
    packaged = any(module.startswith("benchmarks.") for module in modules)
    assert not (beside and packaged)
    said = ast.get_docstring(tree) or ""
    assert f"python -m benchmarks.{script.stem}" in said or not packaged
    assert f"python benchmarks/{script.name}" in said or not beside
