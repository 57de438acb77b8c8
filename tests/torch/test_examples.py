"""Every file of examples/ runs, and prints what it is there to show."""

from __future__ import annotations

import re
import runpy
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import quire
from quire.engine.assembly import build_engine
from quire.engine.config import EngineConfig
from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from quire.http.serving import Server
from support.live_server import eventually

EXAMPLES = Path(quire.__file__).parents[2] / "examples"
PRINTED = {
    "beam_search": r"(-\d+\.\d\d +'.*'\n\s*){4}",
    "block_tables": r"^7 .+\n7 tokens are in blocks \(0, 1\)\n(.*\n)*8 of 8 blocks are free\n$",
    "chat_client": r"What does str.split do\?\n  .+(\n.*)*And str.join\?\n  .+",
    "copy_on_write": r"2 of 3 copy the last block(.*\n)*.* finds 8 of its 11 tokens\n$",
    "generate": r"('A list is' goes on: .*\n){2}",
    "planning": r"1 requests/s: the first token after .*\n4 requests/s",
    "prefix_sharing": r"^0 of \d+ tokens .*\n480 of \d+ .*\n480 of",
    "streaming": r".+\n\d+ tokens",
    "window_and_sinks": r"^1,000 tokens are in 3 of 6 blocks(.*\n)*position 500: block 125 has",
    "structured_output": r"Function\(name='.*', kind='\w+', arguments=\d\)\n(yes|no)\n",
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a server with the demonstration model."""
    engine, capacity = build_engine(EngineConfig(kv_cache_memory_bytes=16 << 20))
    config = ServerConfig(host="127.0.0.1", port=0, shutdown_timeout=0)
    server = Server(create_app(engine, [capacity.model_name], config), config)
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started)
    yield f"http://127.0.0.1:{server.port}"
    server.should_exit = True
    thread.join()


@pytest.mark.skipif(not EXAMPLES.exists(), reason="Quire runs without its sources")
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_shows_what_it_says(
    name: str, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUIRE_URL", url)
    monkeypatch.delenv("QUIRE_API_KEY", raising=False)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(PRINTED[name], printed), printed


def test_every_example_is_run() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == PRINTED.keys()
