"""The settings of replicas, refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.core.errors import ConfigError
from quire.tools.cli import main
from quire_cluster.config import DeploySettings

EVENTS = {"enable_kv_cache_events": True}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"replicas": 0}, "replicas must be an integer from 1 to 1024, got 0"),
        ({"min_replicas": 2}, "min_replicas does nothing without max_replicas"),
        ({"replicas": 5, "max_replicas": 4}, "from min_replicas to max_replicas, 1 to 4; got 5"),
        ({"min_replicas": 3, "max_replicas": 2}, "3 to 2; got 3"),
        ({"routing": "random"}, "routing must be one of prefix, load, round_robin"),
        ({"target_kv_usage": 0}, "target_kv_usage must be from 0.05 to 1, got 0"),
        ({"record_trace": "x"}, "record_trace is not for replicas: all replicas would write"),
        ({"kv_events_config": {"data_parallel_rank": 1}}, "data_parallel_rank is set for each"),
        (
            {"kv_events_config": {**EVENTS, "endpoint": "tcp://*:65534"}, "replicas": 3},
            r"endpoint must end in a port from 1 to 65533, to which data_parallel_rank \(2\)",
        ),
        (
            {"kv_events_config": {**EVENTS, "replay_endpoint": "tcp://*:x"}, "prefill_replicas": 1},
            "replay_endpoint must end in a port",
        ),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is not for replicas: each has one"),
        ({"role": "prefill"}, "role is not for replicas: prefill_replicas says how many"),
        ({"prefill_replicas": 0}, "prefill_replicas must be an integer from 1 to 1024, got 0"),
        ({"min_prefill_replicas": 2}, "_prefill_replicas does nothing without max_prefill_repl"),
        ({"prefill_replicas": 3, "max_prefill_replicas": 2}, "max_prefill_replicas, 1 to 2; got 3"),
        ({"max_local_prefill_length": 9}, "prefill_length does nothing without prefill_replicas"),
        (
            {"prefill_replicas": 1, "kv_transfer_config": {"kv_port": 1}},
            "kv_port is set for each",
        ),
        ({"prefill_replicas": 1, "kv_store": "/tmp"}, "kv_store is for engines of role .both"),
        ({"max_connections": 9}, "max_connections is not for replicas: Ray's proxies"),
        ({"ssl_ca_certs": __file__, "ssl_certfile": "x"}, "ssl_certfile"),
        ({"address": "auto", "port": 0}, "port 0 works only without an address"),
        ({"device": "cuda"}, "replicas run on CPUs"),
        ({"replica": 2}, "replica"),
        ({"max_model_len": -2}, "max_model_len"),
        ({"enable_lora": True, "lora_modules": ["m=/"], "served_model_name": "m"}, "the model its"),
    ],
)
def test_what_replicas_cannot_have(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        DeploySettings.of(given)


def test_adapters_are_named_beforehand(tmp_path: Path) -> None:
    given = {"enable_lora": True, "allow_runtime_lora_updating": True, "lora_directory": tmp_path}
    with pytest.raises(ConfigError, match="name adapters with --lora-modules"):
        DeploySettings.of(given)


def test_how_many_there_are() -> None:
    def bounds(**given: object) -> tuple[int, int, int]:
        span = DeploySettings.of(given).deploy.answering
        return span.fewest, span.first, span.most

    assert bounds() == (1, 1, 1)
    assert bounds(replicas=3) == (3, 3, 3)
    assert bounds(max_replicas=4) == (1, 1, 4)
    assert bounds(min_replicas=2, max_replicas=4) == (2, 2, 4)
    assert bounds(replicas=3, min_replicas=2, max_replicas=4) == (2, 3, 4)
    settings = DeploySettings.of({"max_replicas": 3, "prefill_replicas": 2})
    assert settings.deploy.prefilling == (2, 2, 2, False)
    assert (settings.deploy.most, settings.engine.role) == (5, "decode")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["deploy", "--replicas", "900"], "replicas: 900 of 1 thread each need 900 CPUs"),
        (["deploy", "--num-replicas", "900", "--threads", "2"], "900 of 2 threads"),
        (["deploy", "--prefill-replicas", "400", "--decode-replicas", "500"], "replicas: 900 of"),
        (["deploy", "--tool-call-parser", "x"], "tool_call_parser must be one of"),
        (["serve", "--data-parallel-size", "2"], "quire deploy MODEL --replicas N"),
    ],
)
def test_refused_on_the_command_line(
    flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(flags)
    except SystemExit as end:
        status = int(end.code or 0)
    assert status != 0
    assert complaint in capsys.readouterr().err
