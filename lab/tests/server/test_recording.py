"""``quire record``: what it keeps of a running server, and what it does not."""

from __future__ import annotations

import gzip
import os
import signal
import threading
from pathlib import Path

import pytest

from quire.core.errors import ConfigError, QuireError
from quire.tools.cli import main
from quire_lab.recording import check, lines
from quire_lab.recording.served import ServerRecording
from support.block_truth import Frame
from support.live_server import LiveServer, eventually, live_server

SECRET, KEY = "zebra", "a-key-of-the-operator's"


def record(server: LiveServer, paths: dict[bool, Path]) -> None:
    """While a request runs that speaks of a secret. paths: by whether its text is asked for."""
    stop, said = threading.Event(), list[str]()
    server.http.headers["authorization"] = f"Bearer {KEY}"
    server.executor.hold()
    asked = {"prompt": f"{SECRET} " * 9, "max_tokens": 150, "ignore_eos": True}
    threads = [threading.Thread(target=server.complete, kwargs=asked)]
    for text, path in paths.items():
        recording = ServerRecording(server.url, KEY, text=text)
        arguments = (path, 60.0, stop, said.append)
        threads.append(threading.Thread(target=recording.run, args=arguments))
    threads[0].start()
    eventually(lambda: bool(server.engine._requests))
    for thread in threads[1:]:
        thread.start()

    def step_until_changes() -> bool:
        server.executor.let(steps=1)
        return all(map(has_changes, paths.values()))

    try:
        eventually(step_until_changes, pause=0.2)  # who records asks several times a second
    finally:
        server.executor.release()
        stop.set()
        for thread in threads:
            thread.join()
    assert said == []


def has_changes(path: Path) -> bool:
    try:
        counts = check(path).counts
        return counts["blocks"] > 1 and counts["state"] > 1
    except QuireError:
        return False  # it has only begun


def test_a_running_server_is_recorded_without_texts_unless_asked(tmp_path: Path) -> None:
    paths = {text: tmp_path / f"{text}.quire" for text in (False, True)}
    with live_server(api_key=[KEY], dashboard_show_text=True) as server:
        record(server, paths)
        for text, path in paths.items():
            told = check(path)
            assert not told.cut and told.counts["state"] and told.num_blocks == 128
            assert told.header["text"] is text and told.header["begun"] > 1e9
            frames = [Frame(line.value) for line in lines(path)[1] if line.kind == "blocks"]
            assert any(cell.owner for frame in frames for cell in frame.cells)
            content = gzip.decompress(path.read_bytes()).decode()
            assert KEY not in content and (SECRET in content) is text
        with pytest.raises(ConfigError, match="api_key"):
            ServerRecording(server.url, None, text=False).run(path, 1.0, threading.Event(), print)


def test_ctrl_c_leaves_a_whole_file(shared: LiveServer, tmp_path: Path) -> None:
    path = tmp_path / "x.quire"

    def interrupt() -> None:
        eventually(path.exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    before = signal.getsignal(signal.SIGINT)
    assert main(["record", shared.url, "--out", str(path)]) == 0
    assert signal.getsignal(signal.SIGINT) is before
    assert not check(path).cut
    assert main(["record", shared.url, "--out", str(tmp_path)]) == 1
