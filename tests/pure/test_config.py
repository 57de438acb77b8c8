from __future__ import annotations

import re
import resource
from dataclasses import fields
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.engine.config import EngineConfig, check_on_gpu
from quire.http.config.server import ServerConfig, make_room
from quire.settings import parse_bytes
from quire.tools.cli import main


@pytest.mark.parametrize(
    ("text", "size"),
    [(4096, 4096), ("4096", 4096), ("1k", 1024), ("512MiB", 2**29), ("1.5G", 3 * 2**29),
     ("2 GB", 2**31), ("1tib", 2**40)],
)  # fmt: skip
def test_sizes_in_bytes(text: int | str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1", "4 X", True, 1.5, "1e9"])
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(ConfigError, match="size in bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [("block_size", 0), ("block_size", 1.5), ("max_num_seqs", 0), ("max_num_batched_tokens", -1),
     ("max_model_len", 0), ("kv_cache_memory_bytes", "many"), ("seed", "x"),
     ("max_num_waiting", 0), ("max_queue_time", 0), ("max_queue_time", "1"),
     ("scheduling_policy", "lifo"), ("max_num_seqs", True), ("max_num_seqs", 2**24 + 1),
     ("threads", 0), ("device", "gpu"),
     ("gpu_memory_utilization", 0.0), ("gpu_memory_utilization", 1.1)],
)  # fmt: skip
def test_a_bad_setting_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        EngineConfig.create({name: value})


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be an integer from 1 to 64"),
        ({"nnodes": 2}, "nnodes must be an integer from 1 to 1"),
        ({"tensor_parallel_size": 3, "nnodes": 2}, "3 cannot be divided among 2 nnodes"),
        ({"tensor_parallel_size": 2, "nnodes": 2, "node_rank": 2}, "node_rank .* from 0 to 1"),
        ({"master_port": 0}, "master_port must be an integer from 1 to 65535"),
        ({"master_addr": ""}, "master_addr must be an address"),
        ({"distributed_timeout_seconds": 0.5}, "from 1 to 86400 seconds"),
        ({"distributed_executor_backend": "ssh"}, "must be one of mp, ray, uni; got 'ssh'"),
        ({"distributed_executor_backend": "ray"}, "does nothing with tensor_parallel_size 1"),
        (
            {"tensor_parallel_size": 2, "distributed_executor_backend": "uni"},
            '"uni" is for tensor_parallel_size 1',
        ),
        (
            {"tensor_parallel_size": 2, "nnodes": 2, "distributed_executor_backend": "ray"},
            "nnodes does nothing with ray",
        ),
        ({"tensor_parallel_size": 2, "device": "cuda"}, "ranks compute on CPUs only"),
    ],
)
def test_ranks_that_cannot_be_are_refused_by_name(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        EngineConfig.create(settings)


def test_an_unknown_option_names_its_neighbour() -> None:
    with pytest.raises(ConfigError, match=r"max_num_seq.*did you mean max_num_seqs"):
        EngineConfig.create({"max_num_seq": 4})
    with pytest.raises(ConfigError, match="known: model"):
        EngineConfig.create({"zzz": 4})


@pytest.mark.parametrize("kind", [EngineConfig, ServerConfig])
def test_every_setting_says_what_it_is(kind: type) -> None:
    for field in fields(kind):
        facts, declared = field.metadata, str(field.type)
        assert facts["help"] and facts["section"]
        is_named = facts["choices"] or facts["unit"] or facts["value"]
        assert is_named or declared.startswith(("bool", "Mapping")), field.name
        assert not facts["choices"] or field.default in (None, *facts["choices"])


@pytest.mark.parametrize(("name", "value", "message"), [
    ("max_num_seqs", None, "max_num_seqs must not be None: leave it out for 128"),
    ("dtype", "bf16", "dtype must be one of auto, float32, float, bfloat16, float16, half; got"),
    ("kv_cache_memory_bytes", "many", "kv_cache_memory_bytes: not a size in bytes"),
    ("role", "half", "role must be one of both, prefill, decode; got 'half'"),
    ("kv_store_size", "4", "kv_store_size must be from 0.0009766 to 1073741824 GiB, got '4'"),
])  # fmt: skip
def test_checks_are_made_of_what_settings_say(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**{name: value})


@pytest.mark.parametrize("kind", [EngineConfig, ServerConfig])
def test_a_value_of_another_type_is_refused_by_name(kind: type) -> None:
    """A text such as "false" would count as true."""
    for field in fields(kind):
        values = {"bool": ["false"], "Sequ": [5, [5]]}.get(str(field.type)[:4], [])
        for value in [*values, object()]:
            with pytest.raises(ConfigError, match=rf"^{field.name}\b"):
                kind(**{field.name: value})


@pytest.mark.parametrize(
    ("device", "name", "value"),
    [("cpu", "gpu_memory_utilization", 0.5), ("cpu", "enforce_eager", True),
     ("cpu", "async_scheduling", True),
     ("cuda", "swap_path", "/tmp")],
)  # fmt: skip
def test_what_does_nothing_on_a_device_is_refused(device: str, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} does nothing (with device|on a GPU)"):
        EngineConfig.create({"device": device, name: value, "swap_space": 1.0})
    EngineConfig.create({name: value, "swap_space": 1.0})


@pytest.mark.parametrize(
    "given",
    [{"experts_path": "/tmp"}, {"swap_path": "/tmp", "swap_space": 1.0}, {"cpu_isa": "avx2"},
     {"kv_store": "/tmp"}, {"role": "decode"}, {"enable_lora": True}, {"kv_cache_dtype": "int4"},
     {"tensor_parallel_size": 2}, {"speculative_config": {"method": "draft"}}],
)  # fmt: skip
def test_a_gpu_that_is_found_refuses_what_one_that_is_named_does(given: dict[str, Any]) -> None:
    config = EngineConfig.create(given)
    with pytest.raises(ConfigError) as found:
        check_on_gpu(config)
    with pytest.raises(ConfigError, match=re.escape(str(found.value))):
        EngineConfig.create({**given, "device": "cuda"})


@pytest.mark.parametrize(
    ("given", "message"),
    [({"kv_store_size": 4.0}, "kv_store_size does nothing without kv_store"),
     ({"kv_store": "/tmp", "kv_store_size": 0}, "kv_store_size must be from 0.0009766 to"),
     ({"kv_store": ""}, "kv_store must be a directory"),
     ({"kv_store": "/tmp", "device": "cuda"}, "kv_store: blocks are stored on CPUs only"),
     ({"kv_store": "/tmp", "enable_prefix_caching": False}, "needs enable_prefix_caching"),
     ({"kv_offloading_size": 0}, "kv_offloading_size must be from 0.0009766 to 65536"),
     ({"kv_offloading_size": 1, "device": "cuda"}, "kv_offloading_size: blocks .* CPUs only"),
     ({"kv_offloading_size": 1, "role": "decode"}, "kv_offloading_size is for engines of role")],
)  # fmt: skip
def test_a_store_that_would_do_nothing_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig.create(given)


def test_the_share_of_a_gpu_has_its_default_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert EngineConfig().gpu_memory_utilization == 0.9
    with pytest.raises(ConfigError, match=r"gpu_memory_utilization must not be None: .* 0\.9"):
        EngineConfig.create({"gpu_memory_utilization": None})
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    assert "may take together (default: 0.9)" in " ".join(capsys.readouterr().out.split())


def test_a_cache_of_fp8_needs_a_gpu() -> None:
    with pytest.raises(ConfigError, match=r'kv_cache_dtype "fp8" needs a GPU.*int8'):
        EngineConfig(device="cpu", kv_cache_dtype="fp8")
    EngineConfig(kv_cache_dtype="fp8")


def test_a_cache_of_int4_is_for_cpus() -> None:
    with pytest.raises(ConfigError, match=r'kv_cache_dtype "int4" is for CPUs.*int8.*fp8'):
        EngineConfig(device="cuda", kv_cache_dtype="int4")
    EngineConfig(kv_cache_dtype="int4")


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", 65536), ("port", -1), ("port", "http"), ("max_connections", 0),
     ("max_body_bytes", 0), ("max_unread_bytes", 0),
     ("stream_interval", 0), ("stream_interval", 1.5),
     ("shutdown_timeout", -1), ("shutdown_timeout", float("nan")), ("request_read_timeout", 0)],
)  # fmt: skip
def test_a_server_setting_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        ServerConfig(**{name: value})


def test_connections_are_bounded_by_the_limit_of_open_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for hard, default in ((2**20, 4096), (resource.RLIM_INFINITY, 4096), (1024, 896), (129, 1)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, hard=hard: (64, hard))
        assert ServerConfig().max_connections == default
    with pytest.raises(ConfigError, match="max_connections must be an integer from 1 to 1, got 2"):
        ServerConfig(max_connections=2)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 128))
    with pytest.raises(ConfigError, match="ulimit -n"):
        ServerConfig()


def test_the_process_is_given_the_files_that_connections_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: given.append(limits))
    for soft, hard in ((256, 2**20), (256, 500), (256, resource.RLIM_INFINITY), (9999, 2**20)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, both=(soft, hard): both)
        make_room(1000, 50)
    assert given == [(1178, 2**20), (500, 500), (1178, resource.RLIM_INFINITY)]
