"""Which room may import which (docs/architecture.md), and which stay free of torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import quire

SOURCE = Path(quire.__file__).parent

# Every room may also import errors and exact_json, which import nothing.
MAY_IMPORT = {
    "adapters": {"files", "kernels", "model"},
    "compiled": set(),
    "errors": set(),
    "exact_json": set(),
    "files": set(),
    "heap": set(),
    "hub": set(),
    "cgroups": set(),
    "config": {"dialect"},
    "dialect": set(),
    "events": {"config", "memory", "protocol"},
    "dashboard": {"memory", "protocol", "scheduling"},
    "page": set(),
    "transfer": {"memory", "store"},
    "gguf": {"files"},
    "shape": {"files", "gguf"},
    "streams": set(),
    "capacity": {"config", "memory", "protocol", "scheduling", "shape"},
    "threads": {"cgroups"},
    "version": set(),
    "metrics": set(),
    "tracing": {"memory", "metrics", "protocol"},
    "workload": set(),
    "memory": set(),
    "kernels": {"compiled"},
    "protocol": {"memory"},
    "grammar": {"protocol", "threads"},
    "scheduling": {"memory", "protocol"},
    "routing": set(),
    "store": {"memory"},
    "drafting": {"compiled", "config", "protocol", "scheduling"},
    "simulation": {
        "files",
        "config",
        "shape",
        "capacity",
        "metrics",
        "workload",
        "memory",
        "protocol",
        "routing",
        "scheduling",
        "drafting",
    },
    "reports": {"metrics", "memory", "protocol", "grammar", "scheduling", "simulation", "tracing"},
    "recording": {
        "dashboard",
        "drafting",
        "engine",
        "files",
        "protocol",
        "server",
        "simulation",
        "store",
        "terminal",
        "version",
    },
    "reproduction": {
        "config",
        "workload",
        "memory",
        "protocol",
        "scheduling",
        "simulation",
        "reports",
    },
    "model": {"compiled", "files", "gguf", "heap", "hub", "shape", "kernels"},
    "execution": {"cgroups", "capacity", "grammar", "memory", "protocol", "kernels", "model"},
    "engine": {
        "drafting",
        "events",
        "transfer",
        "files",
        "gguf",
        "grammar",
        "heap",
        "metrics",
        "workload",
        "memory",
        "protocol",
        "scheduling",
        "store",
        "tracing",
    },
    "server": {
        "config",
        "dashboard",
        "dialect",
        "metrics",
        "page",
        "protocol",
        "engine",
        "store",
        "streams",
        "tracing",
        "transfer",
        "version",
    },
    "assembly": {
        "adapters",
        "compiled",
        "config",
        "drafting",
        "events",
        "memory",
        "transfer",
        "files",
        "gguf",
        "heap",
        "threads",
        "shape",
        "capacity",
        "protocol",
        "kernels",
        "model",
        "execution",
        "engine",
        "scheduling",
        "store",
        "streams",
        "version",
    },
    "application": {"assembly", "capacity", "config", "engine", "server"},
    "cluster": {
        "application",
        "config",
        "engine",
        "protocol",
        "routing",
        "server",
        "threads",
        "transfer",
    },
    "calibration": {
        "assembly",
        "bench",
        "config",
        "metrics",
        "workload",
        "memory",
        "protocol",
        "scheduling",
        "shape",
        "capacity",
        "model",
        "engine",
        "simulation",
    },
    "llm": {"assembly", "config", "engine", "protocol"},
    "bench": {"metrics", "workload", "llm", "version"},
    "terminal": {"dialect", "protocol", "llm"},
    "doctor": {
        "cgroups",
        "compiled",
        "config",
        "hub",
        "threads",
        "kernels",
        "execution",
        "bench",
        "version",
    },
}
COMPOSITION_ROOTS = {"cli", "commands", "__init__", "__main__"}  # may import all
TORCH_FREE = [
    "compiled", "errors", "exact_json", "files", "gguf", "heap", "hub", "cgroups", "config",
    "shape", "capacity", "metrics", "workload", "memory", "dialect", "protocol", "grammar",
    "scheduling", "drafting", "simulation", "dashboard", "events", "transfer", "engine", "server",
    "reports", "reproduction", "store", "recording", "routing", "terminal", "tracing",
]  # fmt: skip


def imports(file: Path) -> Iterator[str]:
    """Rooms of quire that a file imports, lazily or for typing included."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names = [node.module or ""]
            if node.module == "quire":
                names = [f"quire.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "quire":
                yield rest.split(".")[0]


def rooms() -> Iterator[tuple[str, Path]]:
    for file in sorted(SOURCE.rglob("*.py")):
        room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        yield room, file


def test_every_room_keeps_the_law() -> None:
    for room, file in rooms():
        if room in COMPOSITION_ROOTS:
            continue
        assert room in MAY_IMPORT, f"{file}: room {room} is not in the law"
        forbidden = set(imports(file)) - MAY_IMPORT[room] - {room, "errors", "exact_json"}
        assert not forbidden, f"{file} imports {forbidden}"


def modules_after(code: str) -> set[str]:
    listing = f"{code}\nimport sys; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


@pytest.mark.parametrize("room", TORCH_FREE)
def test_torch_stays_out_of(room: str) -> None:
    loaded = modules_after(f"import quire.{room}")
    assert not loaded & {"torch", "transformers"}


@pytest.mark.parametrize("room", ["memory", "scheduling"])
def test_the_core_is_standard_library_only(room: str) -> None:
    loaded = {name.split(".")[0] for name in modules_after(f"import quire.{room}")}
    before = {name.split(".")[0] for name in modules_after("")}
    assert loaded - before - set(sys.stdlib_module_names) == {"quire"}


def test_the_command_line_loads_nothing_heavy_for_help() -> None:
    loaded = modules_after(
        "import quire.tools.cli\ntry: quire.tools.cli.main(['serve', '--help'])\nexcept SystemExit: pass"
    )
    assert not loaded & {"torch", "numpy", "tokenizers", "fastapi", "transformers"}
