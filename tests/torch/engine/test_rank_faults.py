"""Ranks that die, hang, fail or do not fit: the engine ends by name, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import Struct

from quire import LLM, SamplingParams
from quire.blocks.transfer import BlockFetcher, Missing
from quire.core.errors import ConfigError, ModelError, RankError
from quire.core.memory import hash_blocks, root_hash
from quire.engine.assembly.ranks.door import Door
from quire.engine.assembly.ranks.facts import difference, facts_of
from quire.engine.assembly.ranks.meeting import meet
from quire.engine.assembly.ranks.messages import (
    OF_RANK_0,
    Beat,
    End,
    Meet,
    RankFacts,
    RankFailed,
    RankHello,
    RankRefused,
    Ready,
)
from quire.engine.assembly.ranks.team import Team
from quire.engine.config import EngineConfig
from quire.kernels.transport import Connection, port
from quire.kernels.transport.connection import pieces
from quire.models.demo import DEMO_MODEL
from support.handover import two_ports
from support.live_server import eventually
from support.server_process import ServerProcess, gone

LONG = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)
SILENCE = 4.0  # seconds that a rank may say nothing


ENGINE = """
import sys
from quire import LLM
llm = LLM(tensor_parallel_size=2, kv_cache_memory_bytes="4MiB", threads=1, dtype="float32",
          swap_space=0.001, swap_path=sys.argv[1], role="prefill",
          kv_transfer_config={"kv_port": int(sys.argv[2])})
print(*(member.process.pid for member in llm.engine.capabilities.others.members), flush=True)
llm.generate(sys.argv[3], use_tqdm=False)
llm.engine.put_away()
print("put away", flush=True)
sys.stdin.read()
"""
PROMPT = "A list of the towns by the river, and of those beyond it: "


@pytest.fixture(scope="module")
def decoding() -> Iterator[LLM]:
    llm = LLM(
        tensor_parallel_size=2,
        kv_cache_memory_bytes="4MiB",
        distributed_timeout_seconds=SILENCE,
        threads=1,
        dtype="float32",
        role="decode",
    )
    yield llm
    llm.close()


def test_ranks_hand_over_their_parts_and_none_outlives_rank_0(
    tmp_path: Path, decoding: LLM
) -> None:
    """However that ends; nor does a file of theirs."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    port = two_ports()
    process = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(tmp_path), str(port), PROMPT],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    alone = LLM(kv_cache_memory_bytes="4MiB", dtype="float32")
    (expected,) = alone.generate(PROMPT, params, use_tqdm=False)
    ids = expected.prompt_token_ids
    assert ids is not None
    names, fetcher = hash_blocks(root_hash(""), ids, 16), decoding.engine.capabilities.transfer
    assert isinstance(fetcher, BlockFetcher) and names
    with process:
        assert process.stdout is not None
        pids = list(map(int, process.stdout.readline().split()))
        assert pids and not any(map(gone, pids))
        for pid in pids:  # they are for rank 0 to hear
            os.kill(pid, signal.SIGINT)
            os.kill(pid, signal.SIGTERM)
        assert process.stdout.readline()
        asyncio.run(fetcher.fetch("127.0.0.1", port, Missing(names)))
        assert (fetcher.num_fetched, fetcher.num_failed) == (len(names), 0)
        (found,) = decoding.generate(PROMPT, params, use_tqdm=False)
        assert found.outputs[0].token_ids == expected.outputs[0].token_ids
        assert found.metrics.fetched_tokens == len(names) * 16
        assert all(map(fetcher._shelf.has, names)), "no rank lacks its part"
        process.kill()
    eventually(lambda: all(map(gone, pids)))
    assert not list(tmp_path.iterdir())


def test_a_rank_that_says_nothing_ends_the_engine_within_the_bound(decoding: LLM) -> None:
    """Though nobody asks it for anything; requests are refused at once then."""
    others: Any = decoding.engine.capabilities.others
    pid, told = others.members[0].process.pid, list[RankError]()
    others.watch(told.append)
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: bool(told))
    why = "rank 1 is gone: it has not answered for 4 seconds"
    for _ in range(2):
        with pytest.raises(RankError, match=why):
            decoding.generate(["A list is", "Memory"], LONG, use_tqdm=False)
    assert str(told[0]) == why
    decoding.close()
    assert gone(pid)


def _rank_of(server: ServerProcess) -> int:
    """The one process among the server's that is a rank; boxes and the last resort are others."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    commands = {int(one): Path(f"/proc/{one}/cmdline").read_bytes() for one in children}
    (rank,) = (
        one for one, command in commands.items() if b"-m\0quire.engine.assembly.ranks\0" in command
    )
    return rank


def test_a_server_whose_rank_dies_says_so_and_ends() -> None:
    flags = "serve --port 0 --kv-cache-memory-bytes 4MiB -tp 2 --served-model-name demo"
    with ServerProcess("-m", "quire", *flags.split()) as server:
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'quire:tensor_parallel_size{model_name="demo"} 2.0' in metrics
        pid = _rank_of(server)
        body = {"model": "demo", "prompt": "Once", "max_tokens": 400, "ignore_eos": True}
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json={**body, "stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(pid, signal.SIGKILL)
            rest = [line for line in lines if line]
        error = json.loads(rest[-1].removeprefix("data: "))["error"]
        assert "rank 1 is gone: it was ended by signal 9 (SIGKILL)" in error["message"]
        health = httpx.get(f"{server.url}/health")
        assert health.status_code == 503
        assert httpx.post(url, json=body).status_code == 503
        assert server.ended() == 1
    assert server.log.count("the engine died: rank 1 is gone") == 2, server.log


def test_a_server_whose_rank_is_stuck_is_gone_in_time(tmp_path: Path) -> None:
    """Though it has blocks to write at its end, for which a rank has ten seconds."""
    flags = "serve --port 0 --kv-cache-memory-bytes 4MiB -tp 2 --shutdown-timeout 0 --kv-store"
    with ServerProcess("-m", "quire", *flags.split(), str(tmp_path)) as server:
        assert server.url
        rank = _rank_of(server)
        os.kill(rank, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert server.process.wait(60) == signal.SIGXCPU
        assert time.monotonic() - began < 8  # 5 where nobody else computes
        eventually(lambda: gone(rank))
    assert "something hangs" in server.log and "end_all" in server.log


# -- without processes -----------------------------------------------------------------------------


def spelled(message: Struct) -> bytes:
    return b"".join(pieces(message))


def framed(content: bytes, size: int | None = None, along: int = 0) -> bytes:
    return struct.pack("<4sIQ", b"QRE2", len(content) if size is None else size, along) + content


@pytest.mark.parametrize(
    ("act", "error", "why"),
    [
        (
            lambda it: it.shutdown(socket.SHUT_RDWR),
            RankError,
            "rank 3 is gone: its connection was closed",
        ),
        (lambda it: it.sendall(b"GET / HTTP/1.1"), RankError, "does not speak as Quire does"),
        (lambda it: it.sendall(framed(b"[]")), RankError, "does not speak as Quire does"),
        (lambda it: it.sendall(framed(b"", 2**31)), RankError, "does not speak as Quire does"),
        (lambda it: it.sendall(framed(b"", 0, 1)), RankError, "does not speak as Quire does"),
        (lambda it: it.sendall(spelled(End())), RankError, "does not speak as Quire does"),
        (lambda it: it.sendall(spelled(Beat())), RankError, "has not answered for 0.05 seconds"),
        (
            lambda it: it.sendall(spelled(RankFailed("ModelError", "no file"))),
            ModelError,
            "rank 3: no file",
        ),
        (lambda it: it.sendall(spelled(Ready())), RankError, "said Ready instead of RankFacts"),
    ],
)
def test_what_a_rank_may_do_as_it_starts(act: Any, error: type[Exception], why: str) -> None:
    ours, theirs = socket.socketpair()
    team = Team(4, silence=0.05)
    team.add(3, Connection(ours), "here")
    act(theirs)
    with pytest.raises(error, match=why):
        team.answers(RankFacts)
    team.close()
    theirs.close()


def hello(**fields: Any) -> bytes:
    """The message as whoever spells it."""
    return framed(msgspec.msgpack.encode({"type": "RankHello", "place": "there", **fields}))


STRANGERS: list[bytes] = [
    b"",  # says nothing, and stays
    b"GET / HTTP/1.1\r\n\r\n",
    framed(b"", 32),  # the beginning of something
    framed(b"\x91" * 200_000),
    hello(rank=[1], size=3),
    hello(rank=True, size=3),
    hello(rank=1),
    hello(rank=7, size=3),
    hello(rank=1, size=4),
]
RANKS = [spelled(RankHello(rank, 3, "there")) for rank in (2, 2, 1)]


def test_ranks_of_other_machines_are_let_in_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever strangers say, or do not say, meanwhile."""
    door, team = Door("127.0.0.1", 0), Team(3, silence=60.0)
    with pytest.raises(ConfigError, match=f"master_port {door.port} .* cannot be listened on"):
        Door("127.0.0.1", door.port)
    callers: list[socket.socket] = []

    def knock() -> None:
        for greeting in [*STRANGERS, *RANKS]:
            callers.append(socket.create_connection(("127.0.0.1", door.port)))
            if greeting:
                callers[-1].sendall(greeting)
        with socket.create_connection(("127.0.0.1", door.port)) as one:  # gone before it is met
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    monkeypatch.setattr(port, "_SILENCE", 60.0)
    knock()

    def check() -> None:
        with pytest.raises(BlockingIOError):  # it is listened to still, and nobody waits for that
            callers[0].recv(1, socket.MSG_DONTWAIT)

    door.let_in(team, [1, 2], check)
    assert [member.rank for member in team.members] == [1, 2]
    for number, why in (
        (7, "rank 7 is not waited for"),
        (8, "rank 1 is one of 4, rank 0 of 3"),
    ):
        refused = Connection(callers[number]).receive(OF_RANK_0, 10)
        assert isinstance(refused, RankRefused) and why in refused.why
    team.close()
    for caller in callers:
        caller.close()


def test_a_machine_that_is_gone_is_noticed_by_who_only_sends() -> None:
    """TCP would go on sending to it for a quarter of an hour."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as theirs,
    ):
        held = Connection(theirs, silence=7.5)
        assert theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7500
        held.close()


def test_settings_that_are_rank_0s_alone_may_differ() -> None:
    """``quire serve`` touches its memory at the start, which the others are told."""
    config = EngineConfig.create({"tensor_parallel_size": 2})
    facts = facts_of(config, DEMO_MODEL, "avx2")
    warm = replace(config, warm_up=True)
    assert difference(facts_of(warm, DEMO_MODEL, "avx2"), facts, 1) is None


def test_what_ranks_differ_in_is_named() -> None:
    here = {"version": "1", "bytes of model.safetensors": 5, "dtype": "auto"}
    assert difference(here, dict(here), 1) is None
    for name, value in (("version", "2"), ("bytes of model.safetensors", 6), ("dtype", "float32")):
        why = difference(here, {**here, name: value}, 2)
        assert why == f"{name} is {here[name]} on rank 0, and {value} on rank 2"
    assert "missing" in str(difference(here, {**here, "config.json": "x"}, 1))


def test_a_rank_that_differs_is_refused_at_both_ends() -> None:
    """Before a model is loaded."""
    config = EngineConfig.create({"tensor_parallel_size": 2, "dtype": "bfloat16"})
    facts = facts_of(config, DEMO_MODEL, "avx2")
    team, (ours, theirs) = Team(2, silence=60.0), socket.socketpair()
    team.add(1, Connection(ours), "there")
    other = Connection(theirs)
    other.send(RankFacts({**facts, "dtype": "float32"}))
    with pytest.raises(
        ConfigError, match="rank 1 cannot join: dtype is bfloat16 on rank 0, and fl"
    ):
        meet(team, config, DEMO_MODEL, "avx2")
    assert isinstance(other.receive(OF_RANK_0, 10), Meet)
    refused = other.receive(OF_RANK_0, 10)
    assert isinstance(refused, RankRefused) and "dtype is bfloat16 on rank 0" in refused.why
    team.close()
    other.close()
