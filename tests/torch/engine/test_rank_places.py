"""Ranks that rank 0 has not started itself: of another machine, and of Ray."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire import LLM, SamplingParams
from quire.blocks.store.segment import names_in
from quire.core.errors import ConfigError
from quire.engine.assembly.ranks.gathering import gather
from quire.engine.assembly.ranks.messages import HELLO, RankRefused
from quire.engine.assembly.ranks.processes import Start
from quire.engine.config import EngineConfig
from quire.kernels.transport import Connection
from quire.tools.cli import main
from support.live_server import eventually
from support.server_process import ServerProcess

PROMPTS = ["A list is", "Memory"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
OPTIONS: dict[str, Any] = {"dtype": "float32", "kv_cache_memory_bytes": "4MiB", "threads": 1}
SEVERAL = {**OPTIONS, "tensor_parallel_size": 2, "distributed_timeout_seconds": 20.0}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
    return port


def texts(llm: LLM) -> list[str]:
    found = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    return [output.outputs[0].text for output in found]


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return texts(LLM(**OPTIONS))


def test_ranks_of_two_machines_find_each_other_by_address(
    expected: list[str], tmp_path: Path
) -> None:
    """The other one ends with this one, once it has written its parts, and says so by its status.

    Each has a store of its own, which it reads and writes for itself.
    """
    port = free_port()
    flags = (
        f"--dtype float32 -tp 2 --nnodes 2 --node-rank 1 --master-port {port} --threads 1 "
        "--kv-cache-memory-bytes 4MiB --distributed-timeout-seconds 20 --block-size 4 "
        f"--kv-store {tmp_path}/there"
    )
    command = [sys.executable, "-m", "quire", "serve", "--headless", *flags.split()]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as other:
        store = {"block_size": 4, "kv_store": f"{tmp_path}/here"}
        llm = LLM(**SEVERAL, **store, nnodes=2, master_port=port)
        assert texts(llm) == expected
        llm.close()
        _, log = other.communicate(timeout=60)
    assert other.returncode == 0 and "Traceback" not in log, log
    here, there = (
        {name for file in (tmp_path / store).rglob("*.blocks") for name in names_in(str(file))}
        for store in ("here", "there")
    )
    assert here == there and len(here) >= 6


def test_a_signal_to_both_machines_lets_streams_end() -> None:
    """As whoever orchestrates them sends it: rank 0 drains, and the other computes on."""
    port = free_port()
    flags = f"serve --dtype float32 -tp 2 --nnodes 2 --master-port {port} --threads 1 --port 0"
    flags += " --kv-cache-memory-bytes 4MiB --distributed-timeout-seconds 20"
    arguments = ["-m", "quire", *flags.split()]
    with (
        ServerProcess(*arguments, "--node-rank", "1", "--headless") as other,
        ServerProcess(*arguments) as server,
    ):
        body = {"prompt": "A list is", "max_tokens": 300, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            other.process.send_signal(signal.SIGTERM)
            server.process.send_signal(signal.SIGTERM)
            events = [line for line in lines if line]
        assert events[-1] == "data: [DONE]" and '"finish_reason":"length"' in "".join(events)
        assert (server.ended(), other.ended()) == (0, 0)


def rank_of(parent: int) -> int:
    """The process of the rank that it has started."""
    found: list[int] = []

    def is_there() -> bool:
        for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            if b"quire.engine.assembly.ranks" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
        return bool(found)

    eventually(is_there)
    return found[0]


@pytest.mark.parametrize("ends", ["rank 0 goes", "two signals"])
def test_a_machine_whose_rank_is_stopped_ends_in_its_time(ends: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as rank_0:
        flags = "serve --headless -tp 2 --nnodes 2 --node-rank 1 --threads 1"
        flags += f" --master-port {rank_0.getsockname()[1]}"
        with (
            ServerProcess("-m", "quire", *flags.split()) as other,
            contextlib.closing(Connection(rank_0.accept()[0])) as connection,
        ):
            assert connection.receive(HELLO, 60).rank == 1
            os.kill(rank_of(other.process.pid), signal.SIGSTOP)
            if ends == "rank 0 goes":
                connection.close()
            else:
                other.process.send_signal(signal.SIGTERM)
                eventually(lambda: "computes on until it ends" in other.log)
                other.process.send_signal(signal.SIGTERM)
            assert other.ended() == 1


def test_a_rank_goes_on_though_nobody_reads_what_it_says() -> None:
    here, there = socket.socketpair()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    config = EngineConfig.create({"tensor_parallel_size": 2})
    start = Start.of(1, config, threads=1, cpus=None, with_rank_0=False)
    command = [sys.executable, "-m", "quire.engine.assembly.ranks", str(there.fileno())]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": writing}
    with here, there, subprocess.Popen(command, pass_fds=[there.fileno()], **pipes) as rank:
        try:
            assert rank.stdin is not None
            rank.stdin.write(json.dumps(asdict(start)).encode() + b"\n")
            rank.stdin.flush()
            Connection(here).send(RankRefused("it is to say so"))
            assert rank.wait(60) == 1
        finally:
            rank.kill()
            os.close(writing)
            os.close(reading)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--headless", "headless is for machines with a node_rank above 0"),
        ("-tp 2 --nnodes 2 --node-rank 1", "headless is for machines with a node_rank above 0"),
    ],
)
def test_who_serves_is_machine_0(flags: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *flags.split()]) == 1
    assert why in capsys.readouterr().err


def test_an_engine_is_on_machine_0() -> None:
    with pytest.raises(ConfigError, match="run quire serve --headless on this one"):
        LLM(tensor_parallel_size=2, nnodes=2, node_rank=1)


@pytest.mark.slow
def test_ranks_are_actors_of_ray(expected: list[str]) -> None:
    """In one placement group, which is given back; on one machine they share memory."""
    ray = pytest.importorskip("ray")
    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20,
        _node_ip_address="127.0.0.1",
    )  # fmt: skip
    try:
        llm = LLM(**SEVERAL, distributed_executor_backend="ray")
        others: Any = llm.engine.capabilities.others
        assert hasattr(others.group, "native")
        assert texts(llm) == expected
        groups = ray.util.placement_group_table().values()
        assert [group["bundles"] for group in groups] == [{0: {"CPU": 1.0}}]
        llm.close()
        states = {group["state"] for group in ray.util.placement_group_table().values()}
        assert states == {"REMOVED"}
    finally:
        ray.shutdown()


def test_without_ray_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    config = EngineConfig.create({**SEVERAL, "distributed_executor_backend": "ray"})
    with pytest.raises(ConfigError, match=r"needs Ray: pip install \"quire-llm\[ray\]\""):
        gather(config)
