"""``quire bench`` with the demonstration model, in this process and in others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import EngineError
from quire.tools.cli import main
from quire_lab.bench.processes import run_bench, serving

PROFILE = Path(__file__).parents[3] / "benchmarks" / "profile_step.py"
POOL = ("--kv-cache-memory-bytes", "16MiB")


def test_throughput_offline(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--workload", "alpaca", "--num-prompts", "3", *POOL)
    assert main(["bench", "throughput", *flags]) == 0
    text = capsys.readouterr().out
    assert text.startswith("throughput of quire-demo: 3 requests, ")
    assert "output tokens/s" in text and "peak resident memory" in text
    share = re.search(r"read at [\d.]+ GB/s, (\d+)% of the [\d.]+ that a plain sum reads", text)
    assert share is not None and int(share[1]) > 0


def test_latency_offline(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--input-len", "9", "--output-len", "4", "--num-iters", "2", *POOL)
    assert main(["bench", "latency", *flags, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["input_len"], report["output_len"], report["num_iters"]) == (9, 4, 2)
    assert report["pool_bytes"] == 16 << 20
    # All weights, and the keys and values of the 9 + 4 / 2 tokens there are half way.
    read = report["token_bytes"] + 11 * report["kv_bytes_per_token"]
    rate = report["bytes_read_per_second"]
    assert rate == pytest.approx(read / report["tpot"]["p50"])
    assert report["share_of_read_bandwidth"] == pytest.approx(rate / report["read_bandwidth"])


def test_a_server_in_a_process_of_its_own() -> None:
    with serving(POOL) as server:
        flags = ("--input-len", "9", "--output-len", "4", "--num-iters", "1")
        report = run_bench(["latency", "--url", server.url, *flags])
        assert report["output_len"] == 4
        memory = server.peak_rss()
        assert memory is None or memory > 16 << 20
    with pytest.raises(EngineError, match="does not list its models"):
        run_bench(["latency", "--url", server.url])


def test_a_server_that_does_not_start_says_why() -> None:
    with (
        pytest.raises(EngineError, match="block_size must be an integer of at least 1"),
        serving(["--block-size", "0"]),
    ):
        pass


def test_the_profile_accounts_for_all_of_a_step() -> None:
    flags = ["--workload", "alpaca", "--num-prompts", "2", "--json", *POOL]
    done = subprocess.run(
        [sys.executable, str(PROFILE), *flags], capture_output=True, text=True, check=True
    )
    kinds: dict[str, Any] = json.loads(done.stdout)["kinds"]
    assert kinds["with prompts"]["steps"] == 1 and kinds["decode"]["steps"] > 1
    for kind in kinds.values():
        for part in ("products", "attention", "sampling", "scheduling", "detokenising"):
            assert kind[part] > 0, part
        charged = sum(kind.values()) - kind["steps"] - kind["tokens"] - kind["seconds"]
        assert charged == pytest.approx(kind["seconds"], rel=0.05)
