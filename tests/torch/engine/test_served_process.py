"""``quire serve`` as a process: full disks and signals."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import httpx
import pytest

from quire_lab.workload import read_recording
from support.server_process import ServerProcess

SERVE = (
    "-m", "quire", "serve", "--host", "127.0.0.1", "--port", "0",
    "--kv-cache-memory-bytes", "4MiB", "--served-model-name", "demo",
)  # fmt: skip


def serve(*flags: str) -> ServerProcess:
    return ServerProcess(*SERVE, *flags)


def test_a_full_disk_ends_the_recording_and_nothing_else() -> None:
    with serve("--record-trace", "/dev/full", "--record-steps", "/dev/full") as server:
        for _ in range(3):
            assert server.complete().status_code == 200
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'quire:trace_recording{model_name="demo"} 0.0' in metrics
        server.process.terminate()
        assert server.ended() == 0
    for recorded in ("trace", "steps"):
        ended = f"record_{recorded}: the recording to /dev/full has ended, serving goes on: [Errno"
        assert server.log.count(ended) == 1
    assert "Traceback" not in server.log and "ignored" not in server.log


def test_a_signal_loses_no_row(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace"
    with serve("--record-trace", str(path), "--swap-space", "0.01") as server:
        assert server.complete().status_code == 200
        body = {"model": "demo", "prompt": "Once", "max_tokens": 300, "stream": True}
        body |= {"ignore_eos": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            metrics = httpx.get(f"{server.url}/metrics").text
            assert 'quire:trace_recording{model_name="demo"} 1.0' in metrics
            server.process.terminate()
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.ended() == 0
    assert [row.output_tokens for row in read_recording(path)] == [3, 300]
    assert "KV memory" in server.log
    told = capfd.readouterr().out
    assert "This is the demonstration model, which knows nothing." in told
    assert "  quire serve HuggingFaceTB/SmolLM2-135M-Instruct " in told, "and what else could be"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_model_is_loaded_ends_quietly(number: int) -> None:
    with serve() as server:
        while not catches_sigterm(server.process.pid):
            assert server.process.poll() is None
            time.sleep(0.005)
        server.process.send_signal(number)
        assert server.ended() == 128 + number


def test_a_signal_within_a_destructor_is_not_lost() -> None:
    program = """
import os, signal
from quire.tools.commands.serve import _leave
class Raised:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000): pass
signal.signal(signal.SIGTERM, _leave)
Raised()
"""
    with ServerProcess("-c", program) as process:
        assert process.ended() == 128 + signal.SIGTERM


def catches_sigterm(pid: int) -> bool:
    """Whether that process has a handler of its own, which it installs after the other ones."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line for line in lines if line.startswith("SigCgt:")).split()[1]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
