"""The settings of several engines that serve together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from quire.config.engine import EngineConfig
from quire.config.names import check_names
from quire.config.server import ServerConfig
from quire.config.settings import check_count, check_number, setting
from quire.errors import ConfigError

ROUTING = ("prefix", "load", "round_robin")

_MOST_REPLICAS = 1024
_ONE_FILE = "all replicas would write to one file"
_RAY_S = "Ray's proxies accept connections"
_NOT_HERE = {
    "record_trace": _ONE_FILE,
    "kv_events_config": "all replicas would publish at one endpoint, for routers that stand before "
    "engines of quire serve",
    "tensor_parallel_size": "each has one rank",
    "role": "they are alike: let a proxy pair engines of quire serve",
    "ssl_ca_certs": f"{_RAY_S}, and ask clients for no certificates",
    "ssl_cert_reqs": f"{_RAY_S}, and ask clients for no certificates",
    "allow_runtime_lora_updating": "one replica would have the adapter, and those that start later "
    "would not: name adapters with --lora-modules",
}  # fmt: skip
"""Settings of engines and servers that replicas cannot have, and why."""


@dataclass(frozen=True)
class DeployConfig:
    """How many engines serve, and who gets which request. ``help`` says what a field does."""

    replicas: int | None = setting(
        None, "engines that serve together (default: min_replicas, or else 1)"
    )
    min_replicas: int | None = setting(
        None, "with max_replicas, the fewest that are left when there is little to do (default: 1)"
    )
    max_replicas: int | None = setting(
        None, "most replicas: more are started when KV blocks become scarce, or requests have to "
        "wait (default: as many as there are)",
    )  # fmt: skip
    target_wait: float = setting(
        1.0, "seconds that requests may have to wait, by prediction, before a replica is added"
    )
    target_kv_usage: float = setting(
        0.8, "share of all KV pools that may be taken before a replica is added"
    )
    upscale_delay: float = setting(10.0, "seconds for which that must be so")
    downscale_delay: float = setting(
        300.0, "seconds for which one replica less must have been enough before one is taken away"
    )
    routing: str = setting(
        "prefix", "who gets a request: prefix, a replica that has computed the beginning of its "
        "prompt, unless others have much less to do; load, who has least to do; or round_robin",
    )  # fmt: skip
    address: str | None = setting(
        None, "of a Ray cluster to join, such as auto or ray-head:6379 (default: a Ray of its own, "
        "on this machine, that ends with it)",
    )  # fmt: skip
    app_name: str = setting("quire", "what Ray Serve calls the application")

    def __post_init__(self) -> None:
        for name in ("replicas", "min_replicas", "max_replicas"):
            check_count(name, getattr(self, name), 1, _MOST_REPLICAS)
        check_number("target_wait", self.target_wait, 0.01, 3600, "seconds")
        check_number("target_kv_usage", self.target_kv_usage, 0.05, 1, "of the pools")
        for name in ("upscale_delay", "downscale_delay"):
            check_number(name, getattr(self, name), 0, 86400, "seconds")
        if self.routing not in ROUTING:
            raise ConfigError(f"routing must be one of {', '.join(ROUTING)}; got {self.routing!r}")
        if not self.app_name:
            raise ConfigError("app_name must not be empty")
        if self.min_replicas is not None and self.max_replicas is None:
            raise ConfigError("min_replicas does nothing without max_replicas")
        if not self.fewest <= self.first <= self.most:
            raise ConfigError(
                f"replicas must be from min_replicas to max_replicas, {self.fewest} to "
                f"{self.most}; got {self.first}"
            )

    @property
    def first(self) -> int:
        """How many are started."""
        return self.replicas or self.min_replicas or 1

    @property
    def fewest(self) -> int:
        if self.max_replicas is None:
            return self.first
        return self.min_replicas or 1

    @property
    def most(self) -> int:
        return self.max_replicas or self.first


def check_replicas(engine: EngineConfig, server: ServerConfig) -> None:
    """ConfigError for a setting that replicas cannot have."""
    check_names(server, engine)
    for config in (engine, server):
        for field in fields(config):
            why = _NOT_HERE.get(field.name)
            if why is not None and getattr(config, field.name) != field.default:
                raise ConfigError(f"{field.name} is not for replicas: {why}")
    if engine.device == "cuda":
        raise ConfigError("replicas run on CPUs; on a GPU, quire serve runs one engine")


class Settings(NamedTuple):
    """All that replicas are made of."""

    engine: EngineConfig
    server: ServerConfig
    deploy: DeployConfig

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """From the fields of all three by name; ConfigError for what is none, or is wrong."""
        if given.get("max_connections") is not None:
            raise ConfigError(f"max_connections is not for replicas: {_RAY_S}")
        of_server, of_deploy = (
            {field.name for field in fields(kind)} for kind in (ServerConfig, DeployConfig)
        )
        engine = EngineConfig.create(
            {name: given[name] for name in given if name not in of_server | of_deploy}
        )
        server = ServerConfig(**{name: given[name] for name in given if name in of_server})
        deploy = DeployConfig(**{name: given[name] for name in given if name in of_deploy})
        check_replicas(engine, server)
        return cls(engine, server, deploy)
