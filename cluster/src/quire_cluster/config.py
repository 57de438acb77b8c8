"""The settings of several engines behind one address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

from quire.core.errors import ConfigError
from quire.engine.config.engine import EngineConfig
from quire.http.config.server import ServerConfig, check_together
from quire.settings import check_settings, setting

_LOCAL = 256  # tokens: computing them takes less time than sending their blocks
_COUNT: Mapping[str, Any] = {"low": 1, "high": 1024, "value": "N"}

_replicas = partial(setting, section="replicas")
_ONE_FILE = "all replicas would write to one file"
_RAY_S = "Ray's proxies accept the connections"
_NOT_HERE = {
    "record_trace": _ONE_FILE,
    "record_steps": _ONE_FILE,
    "tensor_parallel_size": "each has one rank",
    "ssl_ca_certs": f"{_RAY_S}, and do not check clients' certificates",
    "ssl_cert_reqs": f"{_RAY_S}, and do not check clients' certificates",
    "allow_runtime_lora_updating": "only one replica would load the adapter: name adapters with "
    "--lora-modules",
}  # fmt: skip
"""Settings of engines and servers that replicas cannot have, with the reason."""


class Span(NamedTuple):
    """How many replicas there are. changes: whether the number follows the load."""

    first: int
    fewest: int
    most: int
    changes: bool

    @classmethod
    def of(cls, name: str, first: int | None, fewest: int | None, most: int | None) -> Span:
        """ConfigError, naming fields after ``name``, if they contradict each other."""
        if most is None:
            if fewest is not None:
                raise ConfigError(f"min_{name} does nothing without max_{name}")
            return cls(first or 1, first or 1, first or 1, changes=False)
        span = cls(first or fewest or 1, fewest or 1, most, changes=True)
        if not span.fewest <= span.first <= span.most:
            raise ConfigError(
                f"{name} must be from min_{name} to max_{name}, {span.fewest} to {span.most}; "
                f"got {span.first}"
            )
        return span


@dataclass(frozen=True)
class DeployConfig:
    """How many engines serve, and which of them gets a request. Metadata says what fields do."""

    replicas: int | None = _replicas(
        None, "engines that answer requests (default: min_replicas, or else 1)", **_COUNT
    )
    min_replicas: int | None = _replicas(
        None,
        "fewest replicas, when there is little to do; with max_replicas (default: 1)",
        **_COUNT,
    )
    max_replicas: int | None = _replicas(
        None,
        "most replicas: more are started when KV blocks become scarce or requests have to wait "
        "(default: the number does not change)",
        **_COUNT,
    )
    routing: str = _replicas(
        "prefix",
        "which replica gets a request: prefix, one that has the beginning of its prompt cached, "
        "unless others have much less to do; load, the one with least to do; round_robin, each in "
        "turn",
        choices=("prefix", "load", "round_robin"),
    )
    target_wait: float = _replicas(
        1.0,
        "add a replica when requests are predicted to wait longer than this",
        low=0.01,
        high=3600,
        unit="seconds",
    )
    target_kv_usage: float = _replicas(
        0.8,
        "add a replica when more than this share of all KV pools is in use",
        low=0.05,
        high=1,
        value="SHARE",
    )
    upscale_delay: float = _replicas(
        10.0,
        "time for which that must last before a replica is added",
        low=0,
        high=86400,
        unit="seconds",
    )
    downscale_delay: float = _replicas(
        300.0,
        "time for which one replica less must have been enough before one is removed",
        low=0,
        high=86400,
        unit="seconds",
    )
    prefill_replicas: int | None = _replicas(
        None,
        "further engines that only compute prompts, and send the KV blocks to the others "
        "(default: min_prefill_replicas, or else none)",
        **_COUNT,
    )
    min_prefill_replicas: int | None = _replicas(
        None, "fewest prefill replicas; with max_prefill_replicas (default: 1)", **_COUNT
    )
    max_prefill_replicas: int | None = _replicas(
        None,
        "most prefill replicas: more are started when prompts have to wait (default: the number "
        "does not change)",
        **_COUNT,
    )
    max_local_prefill_length: int = _replicas(
        _LOCAL,
        "uncached tokens up to which a prompt is computed where it is answered; a longer one is "
        "sent to a prefill replica first",
        low=0,
        unit="tokens",
    )
    address: str | None = _replicas(
        None,
        "Ray cluster to join, such as auto or ray-head:6379 (default: start Ray on this machine, "
        "and stop it at the end)",
        value="ADDRESS",
    )
    app_name: str = _replicas("quire", "name of the Ray Serve application", value="NAME")

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.app_name:
            raise ConfigError("app_name must not be empty")
        _ = self.answering, self.prefilling  # checks both
        if self.prefilling is None and self.max_local_prefill_length != _LOCAL:
            raise ConfigError("max_local_prefill_length does nothing without prefill_replicas")

    @property
    def answering(self) -> Span:
        """How many replicas answer clients."""
        return Span.of("replicas", self.replicas, self.min_replicas, self.max_replicas)

    @property
    def prefilling(self) -> Span | None:
        """How many replicas compute prompts for the others; None: none."""
        given = self.prefill_replicas, self.min_prefill_replicas, self.max_prefill_replicas
        return None if given == (None, None, None) else Span.of("prefill_replicas", *given)

    @property
    def most(self) -> int:
        """Most engines at once, of both kinds."""
        return self.answering.most + (0 if self.prefilling is None else self.prefilling.most)


def check_replicas(engine: EngineConfig, server: ServerConfig) -> None:
    """ConfigError for a setting that replicas cannot have."""
    check_together(server, engine)
    for config in (engine, server):
        for field in fields(config):
            why = _NOT_HERE.get(field.name)
            if why is not None and getattr(config, field.name) != field.default:
                raise ConfigError(f"{field.name} is not for replicas: {why}")
    if "data_parallel_rank" in (engine.kv_events_config or {}):
        raise ConfigError(
            "kv_events_config: data_parallel_rank is set for each replica: leave it out"
        )
    if engine.device == "cuda":
        raise ConfigError("replicas run on CPUs only; on a GPU, quire serve runs one engine")


class DeploySettings(NamedTuple):
    """All settings of a deployment."""

    engine: EngineConfig
    server: ServerConfig
    deploy: DeployConfig

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> DeploySettings:
        """Settings from the fields of all three, by name; ConfigError for an unknown one."""
        if given.get("max_connections") is not None:
            raise ConfigError(f"max_connections is not for replicas: {_RAY_S}")
        if given.get("role", "both") != "both":
            raise ConfigError(
                "role is not for replicas: prefill_replicas says how many of them only prefill"
            )
        of_server, of_deploy = (
            {field.name for field in fields(kind)} for kind in (ServerConfig, DeployConfig)
        )
        deploy = DeployConfig(**{name: given[name] for name in given if name in of_deploy})
        engine = _engine(
            {name: given[name] for name in given if name not in of_server | of_deploy}, deploy
        )
        server = ServerConfig(**{name: given[name] for name in given if name in of_server})
        check_replicas(engine, server)
        if engine.kv_events is not None:  # checks the ports of the last replica
            _ = replace(engine.kv_events, data_parallel_rank=deploy.most - 1)
        if deploy.address is not None and server.port == 0:
            raise ConfigError(
                "port 0 works only without an address: name the port of a cluster that is joined"
            )
        return cls(engine, server, deploy)


def _engine(given: dict[str, Any], deploy: DeployConfig) -> EngineConfig:
    """The settings of a replica that answers."""
    if deploy.prefilling is None:
        return EngineConfig.create(given)
    engine = EngineConfig.create({**given, "role": "decode"})
    for name in ("kv_ip", "kv_port"):
        if name in (engine.kv_transfer_config or {}):
            raise ConfigError(
                f"kv_transfer_config: {name} is set for each prefill replica: leave it out"
            )
    return engine
