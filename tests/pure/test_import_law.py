"""Which room may import which, and what it loads, by the tables of docs/architecture.md."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import quire

ROOT = Path(quire.__file__).parents[2]
PAGE = ROOT / "docs/architecture.md"
SOURCES = [ROOT / "src", ROOT / "cluster/src", ROOT / "lab/src"]
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="Quire runs without its sources")

EVERYBODY_MAY = {"core/errors", "core/version", "settings"}


class Room(NamedTuple):
    may_import: frozenset[str]
    loads: str


def tables() -> tuple[dict[str, Room], dict[str, Room]]:
    """The wings, and the rooms that have a line of their own."""
    wings, rooms = {}, {}
    if PAGE.exists():
        for line in PAGE.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            if not re.fullmatch(r"`[a-z_/]+`", cells[0]) or len(cells) not in (3, 4):
                continue
            may_import = frozenset(re.findall(r"[a-z_/]+", cells[2])) - {"nothing"}
            if len(cells) == 3:
                wings[cells[0].strip("`")] = Room(may_import, "all")
            else:
                rooms[cells[0].strip("`")] = Room(may_import, cells[3])
    return wings, rooms


WINGS, ROOMS = tables()


def names_of(module: str) -> list[str]:
    """A module and the folders around it, the narrowest first; quire's wings without "quire"."""
    parts = module.split(".")
    if parts[0] == "quire":
        parts = parts[1:]
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]


def room_of(module: str) -> str:
    """The narrowest room or wing that holds it; "" for the package itself."""
    return next((name for name in names_of(module) if name in ROOMS or name in WINGS), "")


def imports(tree: ast.Module) -> Iterator[str]:
    """Modules and names that are imported, lazily or for typing included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def files() -> Iterator[tuple[str, Path]]:
    """Every module of the three packages, by its name."""
    for source in SOURCES:
        for file in sorted(source.rglob("*.py")):
            parts = file.relative_to(source).with_suffix("").parts
            yield ".".join(part for part in parts if part != "__init__"), file


def is_allowed(room: str, other: str) -> bool:
    """A wing without a line among the rooms may import all of its own."""
    allowed = ROOMS[room] if room in ROOMS else WINGS[room]
    if other in EVERYBODY_MAY or other in allowed.may_import or other == room:
        return True
    of_wing = other.split("/")[0]
    if room in ROOMS and room != of_wing:
        # A wing's name means all that is in it, unless rooms of it are named one by one.
        named = {name for name in allowed.may_import if name.split("/")[0] == of_wing}
        return named == {of_wing} and other not in ROOMS_APART
    return room not in ROOMS and of_wing in {room, *allowed.may_import}


ROOMS_APART = {"engine/llm", "engine/assembly"}
"""Where all is put together: only who names them may import them."""


def test_every_room_keeps_the_law() -> None:
    found = 0
    for module, file in files():
        if module in ("quire", "quire.__main__", "quire.moved"):
            continue
        room = room_of(module)
        assert room, f"{file} is in no wing"
        for name in imports(ast.parse(file.read_text(encoding="utf-8"))):
            if not re.match(r"quire(_lab|_cluster)?(\.|$)", name):
                continue
            other = room_of(name)
            assert is_allowed(room, other), f"{file}: {room} imports {other} ({name})"
            found += 1
    assert found > 2000


def test_wings_import_in_one_order() -> None:
    """No two of them each other, by way of others or not."""
    order: list[str] = []
    while len(order) < len(WINGS):
        ready = [
            wing
            for wing, row in WINGS.items()
            if wing not in order and {name.split("/")[0] for name in row.may_import} <= set(order)
        ]
        assert ready, f"a circle beyond {order}"
        order += ready


def test_the_tables_name_what_there_is() -> None:
    there = {name for module, _ in files() for name in names_of(module)}
    named = {*WINGS, *ROOMS, *(name for row in [*WINGS.values(), *ROOMS.values()]
                               for name in row.may_import)}  # fmt: skip
    assert named <= there
    folders = {path.name for path in SOURCES[0].joinpath("quire").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == WINGS.keys() - {"quire_lab", "quire_cluster"}
    assert len(folders - {"__pycache__"}) <= 10


def modules_after(code: str) -> set[str]:
    listing = f"{code}\nimport sys; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


def dotted(room: str) -> str:
    name = room.replace("/", ".")
    return name if name.startswith("quire_") else f"quire.{name}"


@pytest.mark.parametrize("room", [name for name, row in ROOMS.items() if row.loads == "no torch"])
def test_torch_stays_out_of(room: str) -> None:
    assert not modules_after(f"import {dotted(room)}") & {"torch", "transformers"}


def test_the_core_is_standard_library_only() -> None:
    """All of it, and the other rooms that say so."""
    rooms = [name for name, row in ROOMS.items() if row.loads == "stdlib"]
    core = [module for module, _ in files() if module.startswith("quire.core")]
    code = "\n".join(f"import {name}" for name in [*map(dotted, rooms), *core])
    loaded = {name.split(".")[0] for name in modules_after(code)}
    before = {name.split(".")[0] for name in modules_after("")}
    ours = {"quire", "quire_cluster", "quire_lab"}
    assert loaded - before - set(sys.stdlib_module_names) <= ours


def test_the_command_line_loads_nothing_heavy_for_help() -> None:
    loaded = modules_after(
        "from quire.tools.cli import main\ntry: main(['serve', '--help'])\nexcept SystemExit: pass"
    )
    heavy = {"torch", "numpy", "tokenizers", "fastapi", "transformers", "quire_lab"}
    assert not loaded & heavy
