"""What the page costs: a server whose page is open, or was just hidden, and one that nobody sees.

    python benchmarks/dashboard.py [MODEL] [--dtype bfloat16 ...]

One server answers new requests again and again, all at once: while nobody looks, beside a page
that was open until then and is hidden now, and beside one that is open: it reads every frame of
blocks, and each second the state and the decisions. The page is a process that asks what the real
one asks, and draws nothing. Flags that are not listed here are the server's.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import numpy as np
import psutil
from common import add_common_flags, flags_of, show

from quire_lab.bench.processes import ServerProcess, serving
from quire_lab.bench.systems import Online
from quire_lab.bench.workloads import BenchRequest, one_request

PAGES = ("none", "hidden", "open")


def look(url: str) -> None:
    """What an open page asks for, until the process is ended."""
    threading.Thread(target=_watch, args=(url,), daemon=True).start()
    since = 0
    print("begun", flush=True)
    while True:
        state = json.load(urlopen(f"{url}/v1/quire/state"))
        if state["latest_decision"] != since:
            since = json.load(urlopen(f"{url}/v1/quire/decisions?since={since}"))["latest"]
        time.sleep(1)


def _watch(url: str) -> None:
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.sendall(b"GET /v1/quire/blocks?stream=true HTTP/1.1\r\nHost: x\r\n\r\n")
        while connection.recv(2**20):
            pass


@contextlib.contextmanager
def page(kind: str, url: str) -> Iterator[None]:
    """All kinds begin with a rest, after which a machine is slower for a while."""
    command = [sys.executable, __file__, "--look", url]
    if kind == "none":
        command = [sys.executable, "-c", "print()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as looking:
        assert looking.stdout is not None and looking.stdout.readline()
        time.sleep(2)
        if kind == "hidden":
            looking.terminate()
        yield
        looking.terminate()


def cost(server: ServerProcess, requests: list[BenchRequest], kind: str) -> tuple[float, float]:
    """Seconds a token, by the clock and of the server's processors."""
    system, process = Online(server.url), psutil.Process(server.process.pid)
    with page(kind, server.url):
        used = sum(process.cpu_times()[:2])
        run = system.run(requests)
        used = sum(process.cpu_times()[:2]) - used
    tokens = sum(metrics.num_output_tokens for metrics in run.all_metrics())
    return run.seconds / tokens, used / tokens


def main() -> None:
    parser = flags_of(__doc__)
    add_common_flags(parser, rounds=9)
    parser.add_argument("--num-prompts", type=int, default=64, help="requests (%(default)s)")
    parser.add_argument("--input-len", type=int, default=128, help="tokens (%(default)s)")
    parser.add_argument("--output-len", type=int, default=256, help="tokens (%(default)s)")
    parser.add_argument("--look", metavar="URL", help=argparse.SUPPRESS)
    arguments, engine = parser.parse_known_args()
    if arguments.look:
        look(arguments.look)
    model = [] if arguments.model is None else [arguments.model]
    pool = ["--kv-cache-memory-bytes", "512MiB"]
    costs: dict[str, list[tuple[float, float]]] = {kind: [] for kind in PAGES}
    seeds = itertools.count()
    with serving([*model, *pool, *engine]) as server:
        for number in range(arguments.rounds + 1):
            for kind in np.roll(PAGES, number):
                lengths = arguments.input_len, arguments.output_len
                requests = [  # that nobody has sent before, or they would be found in the cache
                    one_request(*lengths, seed=next(seeds)) for _ in range(arguments.num_prompts)
                ]
                found = cost(server, requests, str(kind))
                if number:  # the first round warms up
                    costs[str(kind)].append(found)
    show(_ratios(costs), arguments.json)


def _ratios(costs: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Throughput to that without a page: above 1 where it is faster, below where it costs."""
    results = {}
    for kind in PAGES[1:]:
        for at, name in enumerate(("throughput", "the_same_by_cpu_time")):
            pairs = zip(costs["none"], costs[kind], strict=True)
            ratios = [none[at] / beside[at] for none, beside in pairs]
            results[f"{kind}_{name}"] = statistics.median(ratios)
    return results


if __name__ == "__main__":
    main()
