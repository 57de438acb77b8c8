"""Measures the shape of the house, for the table in docs/architecture.md:

python scripts/shape.py
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).parent.parent / "src" / "quire"
MOST_LINES, MOST_FUNCTION_LINES, MOST_METHODS = 400, 60, 20


def modules() -> Iterator[tuple[str, Path, ast.Module]]:
    """Name, file and syntax of each."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        yield name, path, ast.parse(path.read_text())


def long_files() -> list[str]:
    counts = {path: len(path.read_text().splitlines()) for _, path, _ in modules()}
    return [f"{p.relative_to(SOURCE)}: {n}" for p, n in counts.items() if n > MOST_LINES]


def long_functions() -> list[str]:
    """But for Triton's programs, which are one piece by nature."""
    found = []
    for name, _, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > MOST_FUNCTION_LINES and ".programs." not in name:
                    found.append(f"{name}.{node.name}: {length}")
    return found


def wide_classes() -> list[str]:
    found = []
    for name, _, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = {
                    each.name
                    for each in node.body
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                    and not each.name.startswith("_")
                }
                if len(methods) > MOST_METHODS:
                    found.append(f"{name}.{node.name}: {len(methods)}")
    return found


def import_cycles() -> list[str]:
    """Modules that import each other when they are loaded, by way of others or not."""
    trees = {name: tree for name, _, tree in modules()}
    edges = {name: set(_imported(tree, trees)) - {name} for name, tree in trees.items()}
    reach: dict[str, set[str]] = {}
    for start in edges:
        seen, open_ends = set(), list(edges[start])
        while open_ends:
            name = open_ends.pop()
            if name not in seen:
                seen.add(name)
                open_ends += edges[name]
        reach[start] = seen
    return sorted(name for name in edges if name in reach[name])


def _imported(tree: ast.Module, known: dict[str, Any]) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                # A package stands for what it takes from its modules.
                yield inner if inner in known else str(node.module)


def calls_to_the_first_kernel() -> tuple[int, int]:
    """Quire's own calls between a request's route and its first kernel, and back to the route.

    Those that stand on the stack, in each of the threads and tasks that it goes through.
    """
    import asyncio

    import httpx

    from quire.engine.assembly import build_engine
    from quire.engine.async_engine import AsyncEngine
    from quire.engine.config import EngineConfig
    from quire.engine.output_collector import OutputCollector
    from quire.engine.thread import EngineThread
    from quire.http.app import create_app
    from quire.http.config.server import ServerConfig
    from quire.kernels.cpu import CPUKernels

    depths: dict[str, int] = {}

    def quires(frame: FrameType | None) -> int:
        count = 0
        while frame is not None:
            count += "/quire/" in frame.f_code.co_filename
            frame = frame.f_back
        return count

    def note(cls: type, method: str, name: str) -> None:
        original = getattr(cls, method)

        def noted(*args: Any, **named: Any) -> Any:
            depths.setdefault(name, quires(sys._getframe(1)) + 1)
            return original(*args, **named)

        setattr(cls, method, noted)

    note(EngineThread, "put", "route to thread")
    note(CPUKernels, "plan", "thread to kernel")
    note(AsyncEngine, "_took_step", "kernel to loop")
    note(OutputCollector, "put", "loop to collector")
    note(OutputCollector, "take", "collector to route")
    config = EngineConfig.create({"kv_cache_memory_bytes": "4MiB"})
    engine, _ = build_engine(config)
    app = create_app(engine, ["demo"], ServerConfig())

    async def ask() -> None:
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                body = {"model": "demo", "prompt": "once", "max_tokens": 2}
                assert (await client.post("/v1/completions", json=body)).status_code == 200

    asyncio.run(ask())
    assert threading.active_count() < 50
    there = depths["route to thread"] + depths["thread to kernel"]
    return there, depths["kernel to loop"] + depths["loop to collector"] + depths[
        "collector to route"
    ]


def main() -> None:
    for what, found in (
        (f"files of more than {MOST_LINES} lines", long_files()),
        (f"functions of more than {MOST_FUNCTION_LINES} lines", long_functions()),
        (f"classes with more than {MOST_METHODS} public methods", wide_classes()),
        ("modules that import each other in a circle", import_cycles()),
    ):
        print(f"{what}: {len(found)}", *found, sep="\n  ")
    there, back = calls_to_the_first_kernel()
    print(f"calls from HTTP to the first kernel: {there}; back: {back}")


if __name__ == "__main__":
    main()
