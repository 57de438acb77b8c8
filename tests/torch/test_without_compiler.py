"""An installation without a compiler: what needs none works, what needs one is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

TEXT = " a tuple of fields"  # after "A list is", as the demonstration model goes on

# Every command in one process, since torch takes seconds to load.
WITHOUT = """
import sys
sys.modules["quire.kernels._native"] = sys.modules["quire.capabilities.speculation._native"] = None
import contextlib, io, json, logging
logging.disable(logging.CRITICAL)
from quire import LLM, SamplingParams
from quire.tools.cli import main
from quire.core.errors import QuireError
small = dict(kv_cache_memory_bytes="16MiB", max_model_len=256)
greedy = SamplingParams(max_tokens=4, temperature=0)


load = "--input 8 --output 8 --requests 5 --ttft 1"


def told(act):
    try:
        return act()
    except QuireError as error:
        return f"{type(error).__name__}: {error}"


def text(**options):
    llm = LLM(**small, **options)
    try:
        return llm.generate("A list is", greedy, use_tqdm=False)[0].outputs[0].text
    finally:
        llm.close()


def command(*arguments, typed=""):
    out, sys.stdin = io.StringIO(), io.StringIO(typed)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = main(list(arguments))
        except SystemExit as end:
            status = end.code
    return [status, out.getvalue()]


def served():
    from starlette.testclient import TestClient

    from quire.http.application import build
    from quire.engine.config import EngineConfig
    from quire.http.config.server import ServerConfig

    app, engine, _ = build(EngineConfig.create(small), ServerConfig())
    body = {"model": "quire-demo", "prompt": "A list is", "max_tokens": 4, "temperature": 0}
    predicted = {**body, "prediction": {"type": "content", "content": " a tuple of fields"}}
    with TestClient(app, base_url="http://localhost") as client:
        answers = [client.post("/v1/completions", json=one) for one in (body, predicted)]
    engine.close()
    return [(one.status_code, one.json()["choices"][0]["text"]) for one in answers]


refused = json.loads(sys.argv[1])
kept = json.loads(sys.argv[2])
print(json.dumps({
    "commands": {
        "generate": command("generate", "--max-tokens", "4", "--temperature", "0", "A list is"),
        "chat": command("chat", "--max-tokens", "4", "--temperature", "0", typed="A list is\\n"),
        "bench": command("bench", "latency", *"--input-len 4 --output-len 2 --num-iters 1".split()),
        "models": command("models"),
        "doctor": command("doctor", "--json"),
        "plan": command("plan", "llama-3-8b", "--machine", "h100", *load.split()),
    },
    "served": served(),
    "refused": {name: told(lambda: text(**options)) for name, options in refused.items()},
    "kept": {name: told(lambda: text(**options)) for name, options in kept.items()},
}))
"""

REFUSED = {
    "quantization": ({"quantization": "int8"}, "quantised weights need the kernels in C++"),
    "experts_path": ({"experts_path": "/tmp"}, "experts_path needs the kernels in C++"),
    "cpu_isa": ({"cpu_isa": "avx2"}, "cpu_isa 'avx2' needs the kernels in C++"),
    "ranks": ({"tensor_parallel_size": 2}, "tensor_parallel_size 2 on one machine needs the"),
    "ngram": ({"speculative_config": {"method": "ngram"}}, 'method "ngram" needs the drafters'),
    "auto": ({"speculative_config": {"method": "auto"}}, 'method "auto" needs the drafters'),
}
KEPT: dict[str, dict[str, Any]] = {
    "a cache of int8": {"kv_cache_dtype": "int8"},
    "adapters": {"enable_lora": True},
    "blocks in main memory": {"kv_offloading_size": 0.1},
    "sinks": {"window": 64, "attention_sinks": 4},
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    store = {"a store": {"kv_store": str(tmp_path_factory.mktemp("store"))}}
    refused = {name: options for name, (options, _) in REFUSED.items()}
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT, json.dumps(refused), json.dumps({**KEPT, **store})],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def test_commands_run(told: dict[str, Any]) -> None:
    assert {name: status for name, (status, _) in told["commands"].items()} == {
        "generate": 0,
        "chat": 0,
        "bench": 0,
        "models": 0,
        "doctor": 0,
        "plan": 0,
    }
    said = {name: text for name, (_, text) in told["commands"].items()}
    assert TEXT in said["generate"]
    assert "tokens/s" in said["bench"]
    assert json.loads(said["doctor"])["kernels"] is None


def test_a_server_answers_and_takes_predictions(told: dict[str, Any]) -> None:
    assert told["served"] == [[200, TEXT], [200, TEXT]]


def test_what_needs_no_kernels_works(told: dict[str, Any]) -> None:
    assert told["kept"] == dict.fromkeys([*KEPT, "a store"], TEXT)


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_them_is_refused_by_name(told: dict[str, Any], name: str) -> None:
    found = told["refused"][name]
    assert found.startswith("ConfigError: ")
    assert REFUSED[name][1] in found
    assert "was there a compiler when it was installed?" in found
