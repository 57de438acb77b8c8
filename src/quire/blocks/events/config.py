"""Settings of the prefix cache's events, in the names of vLLM's ``--kv-events-config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.core.errors import ConfigError
from quire.settings import check_known, check_settings, setting

_NAME = "kv_events_config"
_TRANSPORTS = ("tcp://", "ipc://")
_PUBLISHERS = ("null", "zmq")
_MOST_RANK, _LAST_PORT = 65535, 65535
_MOST_BATCHES = 2**31 - 1


@dataclass(frozen=True)
class KVEventsConfig:
    """Where events of the KV cache are published, and how many are kept."""

    enable_kv_cache_events: bool = setting(
        False, "publish which blocks become cached, and which are evicted"
    )
    publisher: str | None = setting(
        None, "null publishes nothing (default: zmq, if events are enabled)", choices=_PUBLISHERS
    )
    endpoint: str = setting(
        "tcp://*:5557",
        "ZeroMQ address: one with a *, or of ipc, is listened on; any other is a collector's to "
        "connect to",
        value="ADDRESS",
    )
    replay_endpoint: str | None = setting(
        None,
        "address to listen on for subscribers that ask for batches they have missed",
        value="ADDRESS",
    )
    buffer_steps: int = setting(
        10_000, "batches that are kept for such subscribers", low=1, high=_MOST_BATCHES, value="N"
    )
    hwm: int = setting(
        100_000,
        "batches that wait for a slow subscriber; it misses those that come after",
        low=1,
        high=_MOST_BATCHES,
        value="N",
    )
    max_queue_size: int = setting(
        100_000, "batches that wait to be sent at all", low=1, high=_MOST_BATCHES, value="N"
    )
    topic: str = setting("", "topic of the messages, as kv@ADDRESS@MODEL", value="TOPIC")
    event_encoding: str = setting(
        "map",
        "map, as vLLM since 0.23; array: fields by position, as vLLM before, for consumers that "
        "know nothing else",
        choices=("map", "array"),
    )
    data_parallel_rank: int = setting(
        0,
        "number of this engine among several that serve one model: it is added to the ports, and "
        "sent with each batch",
        low=0,
        high=_MOST_RANK,
        value="N",
    )

    def __post_init__(self) -> None:
        check_settings(self, f"{_NAME}: ")
        _check_address("endpoint", self.endpoint)
        if self.replay_endpoint is not None:
            _check_address("replay_endpoint", self.replay_endpoint)
        _ = self.addresses  # checks both

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
        """The config of these options. ConfigError: one is unknown or out of its range."""
        check_known(cls, options, f"{_NAME}: ")
        return cls(**options)


def is_listened_on(address: str) -> bool:
    """Whether an address is listened on; any other is another process's, to connect to."""
    return "*" in address or "::" in address or address.startswith("ipc://")


def _of_rank(name: str, address: str, rank: int) -> str:
    """The address of a rank, given that of the first."""
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
