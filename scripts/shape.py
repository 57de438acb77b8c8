"""Measures the shape of the house, for the table in docs/architecture.md:

python scripts/shape.py
"""

from __future__ import annotations

import ast
import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
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
    import httpx

    from quire.engine.assembly import build_engine
    from quire.engine.async_engine import AsyncEngine
    from quire.engine.config import EngineConfig
    from quire.engine.delivery import OutputCollector
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


_BRIEF, _LONG = 60, 120  # tokens of two chats, whose difference is what further tokens cost


def files_of_a_chat() -> tuple[Counter[str], int]:
    """Functions by file, and calls, of one streamed chat from its first byte to its last.

    Of Quire's own, in all threads, of a chat like which another was answered before.
    """
    calls = _calls_of_a_chat(_BRIEF)
    files = Counter(str(Path(code.co_filename).relative_to(SOURCE)) for code in calls)
    return files, calls.total()


def calls_per_token() -> dict[str, float]:
    """Calls of Quire's own functions, in all threads, for a further token of a lone request.

    A generator or coroutine counts each time that it goes on.
    """
    calls = _calls_of_a_chat(_LONG)
    calls.subtract(_calls_of_a_chat(_BRIEF))
    return {
        f"{Path(code.co_filename).relative_to(SOURCE)} {code.co_qualname}": count / (_LONG - _BRIEF)
        for code, count in calls.most_common()
        if count
    }


def _calls_of_a_chat(max_tokens: int) -> Counter[CodeType]:
    """Calls while the demonstration model answers a streamed chat, all of it in this process."""
    from quire.engine.assembly import build_engine
    from quire.engine.config import EngineConfig
    from quire.http.app import create_app
    from quire.http.config.server import ServerConfig

    calls: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            calls[frame.f_code] += 1

    engine, _ = build_engine(EngineConfig.create({"kv_cache_memory_bytes": "4MiB"}))
    engine.clock = lambda: 0.0  # so that nothing is done because some seconds have gone by
    app = create_app(engine, ["demo"], ServerConfig())

    async def ask() -> Counter[CodeType]:
        async with app.router.lifespan_context(app):
            await _ask_for_a_stream(app, max_tokens)
            calls.clear()
            sys.setprofile(note)
            try:
                await _ask_for_a_stream(app, max_tokens)
            finally:
                sys.setprofile(None)
            return Counter(calls)

    threading.setprofile(note)  # of the threads that begin from now on: the engine's
    try:
        return asyncio.run(ask())
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]


async def _ask_for_a_stream(app: Any, max_tokens: int) -> None:
    """Call the app for a streamed chat as an HTTP server does, and take its answer."""
    import json

    from quire.http.answers.streaming import DIRECT

    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Once upon a time"}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    request = {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
    messages = [request]
    answer = b""

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # nobody hangs up
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        nonlocal answer
        answer += message.get("body", b"")

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {DIRECT: send},
    }
    await app(scope, receive, send)
    assert answer.endswith(b"data: [DONE]\n\n"), answer[-200:]


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
    files, calls = files_of_a_chat()
    print(f"one streamed chat: {len(files)} files, {files.total()} functions, {calls} calls")
    print(*(f"{file}: {count}" for file, count in sorted(files.items())), sep="\n")
    by_function = calls_per_token()
    print(f"a further token of a lone request: {sum(by_function.values()):.1f} calls")
    print(*(f"{count:6.2f} {name}" for name, count in by_function.items()), sep="\n")


if __name__ == "__main__":
    main()
