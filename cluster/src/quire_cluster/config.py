"""The settings of several engines that serve together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from quire.core.errors import ConfigError
from quire.core.settings import check_count, check_number, setting
from quire.engine.config.engine import EngineConfig
from quire.http.config.names import check_names
from quire.http.config.server import ServerConfig

ROUTING = ("prefix", "load", "round_robin")

_MOST_REPLICAS = 1024
_LOCAL = 256  # tokens: computed sooner than they are asked for, and come
_NUMBERS = (
    *("replicas", "min_replicas", "max_replicas"),
    *("prefill_replicas", "min_prefill_replicas", "max_prefill_replicas"),
)
_ONE_FILE = "all replicas would write to one file"
_RAY_S = "Ray's proxies accept connections"
_NOT_HERE = {
    "record_trace": _ONE_FILE,
    "record_steps": _ONE_FILE,
    "tensor_parallel_size": "each has one rank",
    "ssl_ca_certs": f"{_RAY_S}, and ask clients for no certificates",
    "ssl_cert_reqs": f"{_RAY_S}, and ask clients for no certificates",
    "allow_runtime_lora_updating": "one replica would have the adapter, and those that start later "
    "would not: name adapters with --lora-modules",
}  # fmt: skip
"""Settings of engines and servers that replicas cannot have, and why."""


class Span(NamedTuple):
    """How many replicas there are. changes: from the fewest to the most, by what there is to do."""

    first: int
    fewest: int
    most: int
    changes: bool

    @classmethod
    def of(cls, name: str, first: int | None, fewest: int | None, most: int | None) -> Span:
        """ConfigError, naming fields after ``name``, where they do not go together."""
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
    """How many engines serve, and who gets which request. ``help`` says what a field does."""

    replicas: int | None = setting(
        None, "engines that answer together (default: min_replicas, or else 1)"
    )
    min_replicas: int | None = setting(
        None, "with max_replicas, the fewest that are left when there is little to do (default: 1)"
    )
    max_replicas: int | None = setting(
        None, "most replicas: more are started when KV blocks become scarce, or requests have to "
        "wait (default: as many as there are)",
    )  # fmt: skip
    prefill_replicas: int | None = setting(
        None, "engines beside them that compute prompts only, and hand their KV blocks over "
        "(default: min_prefill_replicas, or else none)",
    )  # fmt: skip
    min_prefill_replicas: int | None = setting(
        None, "with max_prefill_replicas, the fewest of those that are left (default: 1)"
    )
    max_prefill_replicas: int | None = setting(
        None, "most of them: more are started when prompts have to wait (default: as many as there "
        "are)",
    )  # fmt: skip
    max_local_prefill_length: int = setting(
        _LOCAL, "tokens of a prompt, of those that its replica has not cached, that are computed "
        "there at most; a prompt with more of them is sent to a prefill replica first",
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
        for name in _NUMBERS:
            check_count(name, getattr(self, name), 1, _MOST_REPLICAS)
        check_count("max_local_prefill_length", self.max_local_prefill_length, 0)
        check_number("target_wait", self.target_wait, 0.01, 3600, "seconds")
        check_number("target_kv_usage", self.target_kv_usage, 0.05, 1, "of the pools")
        for name in ("upscale_delay", "downscale_delay"):
            check_number(name, getattr(self, name), 0, 86400, "seconds")
        if self.routing not in ROUTING:
            raise ConfigError(f"routing must be one of {', '.join(ROUTING)}; got {self.routing!r}")
        if not self.app_name:
            raise ConfigError("app_name must not be empty")
        _ = self.answering, self.prefilling  # are checked
        if self.prefilling is None and self.max_local_prefill_length != _LOCAL:
            raise ConfigError("max_local_prefill_length does nothing without prefill_replicas")

    @property
    def answering(self) -> Span:
        """Those that clients are answered by."""
        return Span.of("replicas", self.replicas, self.min_replicas, self.max_replicas)

    @property
    def prefilling(self) -> Span | None:
        """Those that compute prompts for the others, if there are any."""
        given = self.prefill_replicas, self.min_prefill_replicas, self.max_prefill_replicas
        return None if given == (None, None, None) else Span.of("prefill_replicas", *given)

    @property
    def most(self) -> int:
        """Engines at once, of all kinds."""
        return self.answering.most + (0 if self.prefilling is None else self.prefilling.most)


def check_replicas(engine: EngineConfig, server: ServerConfig) -> None:
    """ConfigError for a setting that replicas cannot have."""
    check_names(server, engine)
    for config in (engine, server):
        for field in fields(config):
            why = _NOT_HERE.get(field.name)
            if why is not None and getattr(config, field.name) != field.default:
                raise ConfigError(f"{field.name} is not for replicas: {why}")
    if "data_parallel_rank" in (engine.kv_events_config or {}):
        raise ConfigError("kv_events_config: data_parallel_rank: each replica has its own")
    if engine.device == "cuda":
        raise ConfigError("replicas run on CPUs; on a GPU, quire serve runs one engine")


class DeploySettings(NamedTuple):
    """All that replicas are made of."""

    engine: EngineConfig
    server: ServerConfig
    deploy: DeployConfig

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> DeploySettings:
        """From the fields of all three by name; ConfigError for what is none, or is wrong."""
        if given.get("max_connections") is not None:
            raise ConfigError(f"max_connections is not for replicas: {_RAY_S}")
        if given.get("role", "both") != "both":
            raise ConfigError("role is not for replicas: prefill_replicas says how many have which")
        of_server, of_deploy = (
            {field.name for field in fields(kind)} for kind in (ServerConfig, DeployConfig)
        )
        deploy = DeployConfig(**{name: given[name] for name in given if name in of_deploy})
        engine = _engine(
            {name: given[name] for name in given if name not in of_server | of_deploy}, deploy
        )
        server = ServerConfig(**{name: given[name] for name in given if name in of_server})
        check_replicas(engine, server)
        if engine.kv_events is not None:  # is checked, for the last of them
            _ = replace(engine.kv_events, data_parallel_rank=deploy.most - 1)
        if deploy.address is not None and server.port == 0:
            raise ConfigError("port 0 is for a Ray of its own: of another's, name the port")
        return cls(engine, server, deploy)


def _engine(given: dict[str, Any], deploy: DeployConfig) -> EngineConfig:
    """Of the replicas that answer."""
    if deploy.prefilling is None:
        return EngineConfig.create(given)
    engine = EngineConfig.create({**given, "role": "decode"})
    for name in ("kv_ip", "kv_port"):
        if name in (engine.kv_transfer_config or {}):
            raise ConfigError(f"kv_transfer_config: {name}: each prefill replica has its own")
    return engine
