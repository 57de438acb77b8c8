"""How a server ends: by a signal, in haste, or because its engine has died."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.http import serving
from quire_lab.workload import read_recording
from support.live_server import MODEL, PATIENCE, LiveServer, Post, eventually, live_server
from support.server_process import SCRIPTED, ServerProcess, gone

ASK = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 30}


def scripted(path: Path, setup: str = "", within: tuple[str, ...] = ()) -> ServerProcess:
    return ServerProcess("-c", SCRIPTED.format(setup=setup), str(path), within=within)


def ask_in_threads(server: LiveServer, count: int, **body: Any) -> list[threading.Thread]:
    threads = [threading.Thread(target=lambda: server.complete(**body)) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_what_has_begun_is_finished_and_nothing_else_is_begun(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with live_server({"max_num_seqs": 1}, shutdown_timeout=60) as server:
        expected = server.complete(**ASK, seed=1).json()["choices"]
        session = server.http.post("/v1/sessions", json={"model": MODEL}).json()["id"]
        server.executor.hold()
        answers: list[httpx.Response] = []
        with Post(server, {**ASK, "stream": True}) as stream:
            eventually(lambda: len(server.engine.scheduler.running) == 1)
            waiter = threading.Thread(target=lambda: answers.append(server.complete(**ASK, seed=1)))
            waiter.start()
            server.step_until(lambda: len(server.engine.scheduler.waiting) == 1)
            server.server.should_exit = True
            eventually(lambda: server.http.get("/health").status_code == 503)
            health = server.http.get("/health")
            assert health.json()["error"]["code"] == "shutting_down"
            for path in (
                "completions",
                "chat/completions",
                "sessions",
                f"sessions/{session}/append",
            ):
                refusal = server.http.post(f"/v1/{path}", json=ASK)
                assert refusal.status_code == 503
                assert refusal.json()["error"]["code"] == "shutting_down"
                assert refusal.headers["connection"] == "close"
                assert int(refusal.headers["retry-after"]) > 0
            assert server.http.get("/v1/models").status_code == 200
            assert server.metric("quire:num_requests_running") == 1
            server.executor.release()
            assert b"data: [DONE]" in stream.read_until(b"0\r\n\r\n")
            assert stream.socket.recv(100) == b""
        waiter.join(PATIENCE)
        assert answers[0].json()["choices"] == expected
        eventually(lambda: not server.is_running)
        assert server.server.exit_status == 0
    assert "2 requests have 60 seconds to end" in caplog.text and "% was waste" in caplog.text
    assert not any(record.exc_info for record in caplog.records)


def test_what_has_not_ended_in_time_is_told_so() -> None:
    with live_server(shutdown_timeout=0.3) as server:
        server.executor.hold()
        with Post(server, {**ASK, "stream": True}) as stream:
            server.executor.let(steps=2)
            stream.read_until(b"data: ")
            server.server.should_exit = True
            server.step_until(lambda: not server.server.server_state.connections)
            rest = stream.read_until(b"0\r\n\r\n")
            assert b"the engine has been stopped" in rest and b"[DONE]" not in rest


@pytest.mark.parametrize("signals", [1, 2])
def test_nobody_waits_for_a_step_that_does_not_end(
    signals: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    if signals == 1:
        monkeypatch.setattr(serving, "_SLOWEST_STEP", 0.1)
    with live_server(shutdown_timeout=0 if signals == 1 else 60) as server:
        server.executor.hold()
        with Post(server, {**ASK, "stream": True}) as stream, Post(server, ASK) as whole:
            server.executor.let(steps=2)
            stream.read_until(b"data: ")
            for _ in range(signals):
                server.server.handle_exit(signal.SIGTERM, None)
            assert b"the engine has been stopped" in stream.read_until(b"0\r\n\r\n")
            assert whole.read_until(b"the engine has been stopped").startswith(b"HTTP/1.1 503 ")
            eventually(lambda: not server.is_running)
            assert server.server._engine.at_work
            server.executor.release()
        eventually(lambda: not server.server._engine.at_work)
    assert "% was waste" in caplog.text or server.engine.stats.kv_efficiency is None
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_streams_end_and_loses_no_row(number: int, tmp_path: Path) -> None:
    # Whoever runs the tests may have asked for no hang-ups.
    heard = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"
    slow = f"{heard}\nexecutor.fail = lambda step: time.sleep(0.02)"
    with scripted(tmp_path / "trace", slow) as server:
        assert server.complete().status_code == 200
        body = {**ASK, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            server.process.send_signal(number)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.ended() == 0
    assert "KV memory" in server.log
    rows = list(read_recording(tmp_path / "trace"))
    assert [row.output_tokens for row in rows] == [3, 30]


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    slow = "executor.fail = lambda step: time.sleep(0.2)"
    with scripted(tmp_path / "trace", slow) as server:
        body = {**ASK, "stream": True, "max_tokens": 200}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: httpx.get(f"{server.url}/health").status_code == 503)
            server.process.send_signal(signal.SIGTERM)
            assert "the engine has been stopped" in [line for line in lines if line][-1]
        assert server.ended() == 0
    assert "KV memory" in server.log
    assert [0 < row.output_tokens < 200 for row in read_recording(tmp_path / "trace")] == [True]


def test_a_dead_engine_ends_the_process_with_status_1(tmp_path: Path) -> None:
    dies = "engine.scheduler.schedule = lambda now: sys.exit('a library has had enough')"
    with scripted(tmp_path / "trace", dies) as server:
        answer = server.complete()
        assert answer.status_code == 503 and "has had enough" in answer.text
        assert httpx.get(f"{server.url}/health").status_code == 503
        assert server.process.wait(60) == 1
    assert server.log.count("the server ends with status 1") == 1
    assert list(read_recording(tmp_path / "trace")) == []


def test_nohup_is_respected(tmp_path: Path) -> None:
    ignored = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    with scripted(tmp_path / "trace", ignored) as server:
        assert server.complete().status_code == 200
        server.process.send_signal(signal.SIGHUP)
        for _ in range(5):
            assert server.complete().status_code == 200


LAST = """
import ctypes, functools, os, threading, time
from quire.http.guards.last_resort import LastResort
from quire.http import serving
last_resort = LastResort(0.5)
last_resort.hear()
run_server = functools.partial(run_server, last_resort=last_resort)

def hang(*given):
    print("it hangs", file=sys.stderr, flush=True)
    threading.Event().wait()

def wait_for_ever(library):  # and for no signal
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)

def hang_in_a_native_call(*given):
    print("it hangs", file=sys.stderr, flush=True)
    wait_for_ever(ctypes.CDLL(None))

def hang_with_python_s_lock(*given):
    time.sleep(0.5)  # the log's thread writes what has been said: it needs the lock as well
    os.write(2, b"it hangs\\n")
    wait_for_ever(ctypes.PyDLL(None))

def hang_with_a_process(*given):
    import subprocess
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    os.write(2, b"its process is %d\\n" % child.pid)
    hang_with_python_s_lock()

"""
PLACES = {
    "a step": "executor.fail",
    "a text": "engine.input_processor.prepare",
    "the event loop": "serving.collect",
    "what is closed": "engine.close",
}


FIRST_OF_ITS_CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def end_what_hangs(server: ServerProcess, place: str, pid: int) -> None:
    """Send the server a signal once it hangs there."""
    body = json.dumps(ASK)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as asking:
        if place in ("a step", "a text"):
            asking.sendall(f"{head}content-type: application/json\r\n\r\n{body}".encode())
        if place != "what is closed":
            eventually(lambda: "it hangs" in server.log)
        os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize(("place", "how"), [
    ("a step", "hang"),
    ("a text", "hang"),
    ("a text", "hang_with_python_s_lock"),
    ("the event loop", "hang_in_a_native_call"),
    ("the event loop", "hang_with_python_s_lock"),
    ("the event loop", "hang_with_a_process"),
    ("what is closed", "hang"),
])  # fmt: skip
def test_the_process_is_gone_whatever_hangs(place: str, how: str, tmp_path: Path) -> None:
    with scripted(tmp_path / "trace", f"{LAST}{PLACES[place]} = {how}") as server:
        end_what_hangs(server, place, server.process.pid)
        status = server.process.wait(60)
        if how == "hang":  # its threads end with it, so that it may end by itself
            assert status in (0, 1, signal.SIGXCPU)
            return
        assert status == signal.SIGXCPU
    assert "something hangs" in server.log and f" in {how}" in server.log
    started = [int(pid) for pid in re.findall(r"its process is (\d+)", server.log)]
    eventually(lambda: all(map(gone, started)))


def test_the_first_process_of_a_container_is_gone_too(tmp_path: Path) -> None:
    allowed = shutil.which("unshare") and not subprocess.call([*FIRST_OF_ITS_CONTAINER, "true"])
    if not allowed:
        pytest.skip("needs the right to make a namespace of processes")
    setup = f"{LAST}{PLACES['the event loop']} = hang_with_python_s_lock"
    with scripted(tmp_path / "trace", setup, FIRST_OF_ITS_CONTAINER) as server:
        assert server.url
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        end_what_hangs(server, "the event loop", int(children.read_text()))
        assert server.process.wait(60) == signal.SIGXCPU
    assert " in hang_with_python_s_lock" in server.log


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_reader_of_the_log_who_has_stopped_stops_nobody(form: str, tmp_path: Path) -> None:
    setup = f"""
import os, warnings
from quire.http.serving import set_format
os.dup2(2, 1)
warnings.simplefilter("always")
def says(step):
    warnings.warn("to be seen")
    print("x" * 4096)
executor.fail = says
make = ServerConfig
ServerConfig = lambda **given: make(**given, log_format="{form}")
"""
    program = SCRIPTED.format(setup=setup)
    with ServerProcess("-c", program, str(tmp_path / "trace"), stalls=True) as server:
        for _ in range(5):  # each writes more than a pipe holds
            assert server.complete(max_tokens=20).status_code == 200
        with httpx.Client(base_url=server.url, headers={"x-request-id": "a" * 128}) as http:
            for _ in range(50):
                assert http.get(f"/health?{'x' * 200}").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        server.read_on()
