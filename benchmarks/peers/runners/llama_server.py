"""llama.cpp's llama-server on a loopback port: all requests at once, without streaming."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, Any

from benchmarks.peers.runners.job import WARM_UP, Job, Request, answer, peak_rss, read_job

_SLOTS = 16
_CELLS = 256  # a slot's context is rounded up to this
_PATIENCE = 600.0  # seconds to load in
_ASKED = {
    "temperature": 0,
    "samplers": ["top_k"],  # no others: with one candidate it is an argmax
    "top_k": 1,
    "ignore_eos": True,
    "return_tokens": True,
    "response_fields": ["tokens", "truncated"],
}


def _command(job: Job, port: int) -> list[str]:
    slots = min(_SLOTS, len(job.requests))
    context = slots * -(-(job.longest + 1) // _CELLS) * _CELLS
    return [
        *(str(job.program), "--model", job.model),
        *("--host", "127.0.0.1", "--port", str(port), "--offline"),
        *("--threads", str(job.threads), "--parallel", str(slots), "--ctx-size", str(context)),
        *("--flash-attn", "on", "--no-kv-unified", "--fit", "off", "--cache-ram", "0"),
    ]


@contextmanager
def _serving(job: Job) -> Iterator[tuple[int, int]]:
    """The port and the process of a server that has loaded the model; stopped at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(_command(job, port), stdout=log, stderr=log)
        try:
            _wait_until_healthy(process, port, log)
            yield port, process.pid
        finally:
            process.kill()
            process.wait()


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: IO[str]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if _ask(port, "GET", "/health")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    log.seek(0)
    sys.exit(f"{log.read()[-2000:]}\nllama-server did not start (status {process.poll()})")


def _ask(port: int, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _complete(port: int, request: Request) -> list[int]:
    body = {**_ASKED, "prompt": request.prompt, "n_predict": request.max_tokens}
    status, payload = _ask(port, "POST", "/completion", body)
    if status != 200:
        sys.exit(f"llama-server answered {status}: {payload[:200].decode(errors='replace')}")
    reply = json.loads(payload)
    if reply["truncated"]:
        sys.exit("llama-server has cut a request off")
    tokens: list[int] = reply["tokens"]
    return tokens


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and stop the server with it
    job = read_job()
    with _serving(job) as (port, pid), ThreadPoolExecutor(len(job.requests)) as clients:
        _complete(port, WARM_UP)
        started = time.perf_counter()
        outputs = list(clients.map(lambda request: _complete(port, request), job.requests))
        seconds = time.perf_counter() - started
        answer(job, outputs, seconds, peak_rss(pid))


if __name__ == "__main__":
    main()
