"""Everything in the core is read by somebody: what only tests read goes, or moves to them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import quire

ROOT = Path(quire.__file__).parents[2]
SOURCES = [ROOT / "src", ROOT / "cluster/src", ROOT / "lab/src"]
CORE = ROOT / "src/quire/core"
if not all(source.exists() for source in SOURCES):
    pytest.skip("Quire runs without its sources", allow_module_level=True)

TREES = {
    file: ast.parse(file.read_text(encoding="utf-8"))
    for source in SOURCES
    for file in source.rglob("*.py")
}


def defined(body: list[ast.stmt]) -> Iterator[str]:
    """Names that a module or a class gives to what is in it; members of enums have values."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        if isinstance(node, ast.ClassDef) and "Enum" not in map(ast.unparse, node.bases):
            yield from defined(node.body)
            for inner in ast.walk(node):
                if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                    yield inner.attr


def read(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr


def test_every_name_is_read() -> None:
    """By its letters: another's of the same name counts too, so it says too little, never more."""
    known = {name for tree in TREES.values() for name in read(tree)}
    names = {
        (file.name, name)
        for file, tree in TREES.items()
        if file.is_relative_to(CORE)
        for name in defined(tree.body)
        if not name.startswith("__")
    }
    assert len(names) > 500
    assert not {(file, name) for file, name in names if name not in known}


def test_what_a_room_offers_is_taken_from_there() -> None:
    taken = {
        (node.module, alias.name)
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for room in ("memory", "protocol", "scheduling"):
        module = f"quire.core.{room}"
        tree = TREES[CORE / room / "__init__.py"]
        offered = {
            (module, alias.asname or alias.name)
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module != "__future__"
            for alias in node.names
        }
        assert offered and offered <= taken, offered - taken
