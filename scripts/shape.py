"""Measures the shape of the house, for the tables in docs/architecture-shape.md:

python scripts/shape.py           tells each measure, and what stands out
python scripts/shape.py --lower   writes ceilings that have become too high anew
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/architecture-shape.md"
SOURCE = ROOT / "src" / "quire"
PACKAGES = [SOURCE, ROOT / "lab/src/quire_lab", ROOT / "cluster/src/quire_cluster"]
SLIVER = 60  # lines: a file that has fewer seldom holds an idea of its own


class Module(NamedTuple):
    name: str
    path: Path
    lines: int
    tree: ast.Module


@cache
def modules() -> list[Module]:
    """All of the three packages."""
    return [
        Module(".".join(_parts(path, package)), path, len(text.splitlines()), ast.parse(text))
        for package in PACKAGES
        for path in sorted(package.rglob("*.py"))
        for text in [path.read_text(encoding="utf-8")]
    ]


def _parts(path: Path, package: Path) -> list[str]:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return [part for part in parts if part != "__init__"]


def _nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, Any]]:
    """Name and syntax of all of a kind."""
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, kinds):
                yield f"{module.name}.{node.name}", node  # type: ignore[attr-defined]


def lines_of_files() -> dict[str, int]:
    return {module.name: module.lines for module in modules()}


def lines_of_functions() -> dict[str, int]:
    """But for Triton's programs, which are one piece by nature."""
    return {
        name: node.end_lineno - node.lineno + 1
        for name, node in _nodes(ast.FunctionDef, ast.AsyncFunctionDef)
        if ".programs." not in name
    }


def parameters_of_constructors() -> dict[str, int]:
    """Of those that are written out; the fields of a dataclass are its content."""
    return {
        name: len([*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]) - 1
        for name, node in _nodes(ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    }


def public_methods_of_classes() -> dict[str, int]:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return {
        name: len({n.name for n in node.body if isinstance(n, functions) and n.name[0] != "_"})
        for name, node in _nodes(ast.ClassDef)
    }


def top_rooms() -> list[str]:
    return sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists())


def class_names_given_twice() -> list[str]:
    """Private ones too."""
    counts = Counter(name.rpartition(".")[2] for name, _ in _nodes(ast.ClassDef))
    return sorted(name for name, count in counts.items() if count > 1)


def slivers() -> list[str]:
    """But for a package's front, which is to be short."""
    return [m.name for m in modules() if m.lines < SLIVER and m.path.name != "__init__.py"]


def import_cycles() -> list[str]:
    """Modules that import each other when they are loaded, by way of others or not."""
    trees = {module.name: module.tree for module in modules()}
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


def lines_of(package: str) -> int:
    return sum(m.lines for m in modules() if f"{m.name}.".startswith(f"{package}."))


GREATEST: dict[str, Callable[[], dict[str, int]]] = {
    "lines of a file": lines_of_files,
    "lines of a function": lines_of_functions,
    "parameters of a constructor": parameters_of_constructors,
    "public methods of a class": public_methods_of_classes,
}
"""The greatest counts, of all that the table of exceptions does not name."""

COUNTS: dict[str, Callable[[], list[str] | int]] = {
    "top rooms of `quire`": top_rooms,
    "lines of Python in `quire`": lambda: lines_of("quire"),
    "lines of Python in `quire/core`": lambda: lines_of("quire.core"),
    "modules that import each other in a circle": import_cycles,
    "class names given twice": class_names_given_twice,
    f"files of less than {SLIVER} lines": slivers,
}


def calls_to_the_first_kernel() -> tuple[int, int]:
    """Quire's own calls between a request's route and its first kernel, and back to the route.

    Those that stand on the stack, in each of the threads and tasks that it goes through.
    """
    import httpx

    from quire.engine.assembly import build_engine
    from quire.engine.config import EngineConfig
    from quire.engine.thread import Delivery, EngineThread, OutputCollector
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
    note(Delivery, "put", "kernel to loop")
    note(OutputCollector, "put", "loop to collector")
    note(OutputCollector, "take", "collector to route")
    config = EngineConfig.create({"kv_cache_memory_bytes": "4MiB"})
    engine, _ = build_engine(config)
    app = create_app(engine, ["demo"], ServerConfig())

    async def ask() -> None:
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost"
            ) as client:
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


RUNNING: dict[str, Callable[[], float]] = {
    "calls on the stack from a route to its first kernel": lambda: calls_to_the_first_kernel()[0],
    "calls on the stack from a kernel back to the route": lambda: calls_to_the_first_kernel()[1],
    "files that one streamed chat runs through": lambda: len(files_of_a_chat()[0]),
    "calls for a further token of a lone request": lambda: sum(calls_per_token().values()),
}
"""What is measured by serving a request with the demonstration model."""


class Row(NamedTuple):
    """at_most: what may be measured. goal: from there on it need not become less."""

    at_most: float
    goal: float

    def is_too_high(self, measured: float) -> bool:
        """Whether more is allowed than is measured, by a fiftieth or more.

        So a measure cannot rise again once it has come down.
        """
        return self.at_most > max(self.goal, measured * 1.02)


def table(page: str) -> dict[str, Row]:
    """Measures and what they may be. Exceptions are called MEASURE: `NAME`."""
    rows = re.findall(r"^\| (.+?) \| ([\d,]+) \| ([\d,]+) \|$", page, re.MULTILINE)
    return {name: Row(*(float(cell.replace(",", "")) for cell in cells)) for name, *cells in rows}


def measured(rows: dict[str, Row]) -> dict[str, float]:
    """What can be seen in the sources alone, exceptions by name."""
    found: dict[str, float] = {}
    for what, count in COUNTS.items():
        figure = count()
        found[what] = figure if isinstance(figure, int) else len(figure)
    for what, sizes in GREATEST.items():
        by_name = sizes()
        excepted = {n: s for n, s in by_name.items() if f"{what}: `{n}`" in rows}
        found |= {f"{what}: `{name}`": size for name, size in excepted.items()}
        found[what] = max(size for name, size in by_name.items() if name not in excepted)
    return found


def lowered(page: str, figures: dict[str, float]) -> str:
    """The page with lower ceilings, and without exceptions that are none any more."""
    rows = table(page)
    for name, row in rows.items():
        kind = name.split(": ")[0]
        if name != kind and kind in figures and figures.get(name, 0) <= rows[kind].at_most:
            page = re.sub(rf"^\| {re.escape(name)} \|.*\n", "", page, flags=re.MULTILINE)
        elif name in figures and row.is_too_high(figures[name]):
            new = f"| {name} | {max(figures[name], row.goal):,.0f} |"
            page = page.replace(f"| {name} | {row.at_most:,.0f} |", new)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--lower", action="store_true", help="write lower ceilings into the page")
    page = PAGE.read_text(encoding="utf-8")
    rows = table(page)
    figures = measured(rows) | {what: measure() for what, measure in RUNNING.items()}
    if parser.parse_args().lower:
        PAGE.write_text(lowered(page, figures), encoding="utf-8")
    for what, row in rows.items():
        print(f"{what}: {figures.get(what, 0):,.0f} of {row.at_most:,.0f}")
    for what, sizes in GREATEST.items():
        greatest = sorted(sizes().items(), key=lambda item: -item[1])[:12]
        print(f"\n{what}:", *(f"{size:5} {name}" for name, size in greatest), sep="\n  ")
    for what, count in COUNTS.items():
        if isinstance(found := count(), list):
            print(f"\n{what}:", *found, sep="\n  ")
    chat, token = files_of_a_chat()[0], calls_per_token()
    print("\nfunctions of one streamed chat:", *(f"{chat[file]:5} {file}" for file in sorted(chat)),
          sep="\n  ")  # fmt: skip
    print("\ncalls of a token:", *(f"{token[name]:5.2f} {name}" for name in token), sep="\n  ")


if __name__ == "__main__":
    main()
