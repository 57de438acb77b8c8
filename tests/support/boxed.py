"""A service that does what a client's worst would."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import signal
import time
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from quire.core.errors import RequestError
from support.grammars import backend


class Service:
    def __init__(self, word: str) -> None:
        self._word = word
        self._shared: mmap.mmap | None = None

    def share(self, shared: mmap.mmap) -> None:
        self._shared = shared

    def say(self, more: str) -> str:
        return self._word + more

    def refuse(self) -> None:
        raise RequestError("it is not to be had", "prompt")

    def fail(self) -> None:
        raise KeyError("oh")

    def crash(self) -> None:
        ctypes.string_at(0)

    def take(self, size: int) -> int:
        return len(bytearray(size))

    def loop(self) -> None:
        while True:
            pass

    def sleep(self, seconds: float) -> int:
        time.sleep(seconds)
        return os.getpid()

    def process(self) -> int:
        return os.getpid()

    def give(self, size: int) -> bytes:
        return bytes(size)

    def write(self, text: bytes) -> None:
        assert self._shared is not None
        self._shared[: len(text)] = text

    def files(self) -> list[str]:
        files = list(Path("/proc/self/fd").iterdir())
        return [str(file.readlink()) for file in files if file.is_symlink()]

    def cores(self) -> int:
        return resource.getrlimit(resource.RLIMIT_CORE)[0]


def refusing() -> Service:
    raise RequestError("no such vocabulary", "structured_outputs")


def threads(process: int) -> dict[int, str]:
    """Their states: a signal is still on its way when ``os.kill`` returns."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return {
        int(one.name): (one / "stat").read_text().rpartition(")")[2].split()[0] for one in tasks
    }


def stop(process: int) -> None:
    """Keep all of its threads from computing."""
    os.kill(process, signal.SIGSTOP)
    while set(threads(process).values()) != {"T"}:
        time.sleep(0.001)


class Native:
    """Compiles schemas whose references form a chain, without a look at how long that is."""

    def __init__(self, word: str) -> None:
        self._words = LLTokenizer(backend().to_str())

    def compile(self, links: int) -> str:
        definitions: dict[str, object] = {
            f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(links)
        }
        definitions[f"d{links}"] = {"type": "string"}
        schema = {"$ref": "#/$defs/d0", "$defs": definitions}
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        return str(LLMatcher(self._words, grammar, log_level=0).get_error())
