"""Who is told what the prefix cache holds, in the names that vLLM's ``--kv-events-config`` has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from quire.core.errors import ConfigError
from quire.core.settings import check_count, check_known, setting

_NAME = "kv_events_config"
_TRANSPORTS = ("tcp://", "ipc://")
_MOST_RANK, _LAST_PORT = 65535, 65535


@dataclass(frozen=True)
class KVEventsConfig:
    """Where events of the KV cache are published, and how much is kept of them."""

    enable_kv_cache_events: bool = setting(False, "tell what blocks can be found, and no longer")
    publisher: str | None = setting(None, "null or zmq (default: zmq, where events are enabled)")
    endpoint: str = setting(
        "tcp://*:5557",
        "ZeroMQ address: with a *, or of ipc, it is listened on; else that of a collector, to "
        "connect to",
    )
    replay_endpoint: str | None = setting(
        None, "address to listen on for those who ask for what they have missed"
    )
    buffer_steps: int = setting(10_000, "batches of events that are kept for those")
    hwm: int = setting(
        100_000, "batches that wait for a subscriber who is slow; the rest he misses"
    )
    max_queue_size: int = setting(100_000, "batches that wait to be sent at all")
    topic: str = setting("", "what subscribers subscribe to, as kv@ADDRESS@MODEL")
    event_encoding: str = setting(
        "map",
        "map, as vLLM has had it since 0.23; array: fields by their position, as it was before, "
        "for consumers that know no other",
    )
    data_parallel_rank: int = setting(
        0,
        "which this one is of several engines that serve one model: it is added to the ports, and "
        "told with each batch",
    )

    def __post_init__(self) -> None:
        if not isinstance(self.enable_kv_cache_events, bool):
            raise ConfigError(f"{_NAME}: enable_kv_cache_events must be true or false")
        if self.publisher not in (None, "null", "zmq"):
            raise ConfigError(f"{_NAME}: publisher must be null or zmq; got {self.publisher!r}")
        if self.event_encoding not in ("map", "array"):
            raise ConfigError(
                f"{_NAME}: event_encoding must be map or array; got {self.event_encoding!r}"
            )
        if not isinstance(self.topic, str):
            raise ConfigError(f"{_NAME}: topic must be a text, got {self.topic!r}")
        for name in ("buffer_steps", "hwm", "max_queue_size"):
            value = getattr(self, name)
            check_count(f"{_NAME}: {name}", 0 if value is None else value, 1, 2**31 - 1)
        check_count(f"{_NAME}: data_parallel_rank", self.data_parallel_rank, 0, _MOST_RANK)
        _check_address("endpoint", self.endpoint)
        if self.replay_endpoint is not None:
            _check_address("replay_endpoint", self.replay_endpoint)
        _ = self.addresses  # are checked

    @property
    def publishes(self) -> bool:
        return self.enable_kv_cache_events and self.publisher != "null"

    @property
    def addresses(self) -> tuple[str, str | None]:
        """The endpoint and the replay endpoint of this rank, as vLLM has them."""
        replay, rank = self.replay_endpoint, self.data_parallel_rank
        return (
            _of_rank("endpoint", self.endpoint, rank),
            None if replay is None else _of_rank("replay_endpoint", replay, rank),
        )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> KVEventsConfig:
        """ConfigError where an option is unknown or out of its range."""
        check_known(cls, options, f"{_NAME}: ")
        return cls(**options)


class _Told(Protocol):
    """The fields of an EngineConfig that it depends on."""

    @property
    def kv_events(self) -> KVEventsConfig | None: ...

    @property
    def enable_prefix_caching(self) -> bool | None: ...


def check_kv_events(config: _Told) -> None:
    """ConfigError where there would be nothing to tell."""
    if config.kv_events is None:
        return
    if config.enable_prefix_caching is False:
        raise ConfigError(f"{_NAME} does nothing without enable_prefix_caching")


def is_listened_on(address: str) -> bool:
    """Whether it is an address of one's own; else it is another's, to connect to."""
    return "*" in address or "::" in address or address.startswith("ipc://")


def _of_rank(name: str, address: str, rank: int) -> str:
    """The address of an engine, given that of the first."""
    if not rank:
        return address
    if address.startswith("ipc://"):
        return f"{address}_dp{rank}"
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) + rank > _LAST_PORT:
        raise ConfigError(
            f"{_NAME}: {name} must end in a port from 1 to {_LAST_PORT - rank}, to which "
            f"data_parallel_rank ({rank}) is added; got {address!r}"
        )
    return f"{host}:{int(port) + rank}"


def _check_address(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.startswith(_TRANSPORTS):
        known = " or ".join(_TRANSPORTS)
        raise ConfigError(f"{_NAME}: {name} must begin with {known}; got {value!r}")
