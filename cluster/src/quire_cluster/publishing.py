"""The ports at which a replica publishes its prefix cache's events."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace

from quire.blocks.events.config import KVEventsConfig, is_listened_on
from quire.engine.config import EngineConfig


def with_place(engine: EngineConfig, rank: int, most: int) -> EngineConfig:
    """The config with ports that are free: those of the replica's rank, if possible.

    Another replica may use them, whose rank has changed since, or which has not left yet. Then the
    ports are those of the first of ``most`` ranks whose ports are free. If none are, they stay the
    rank's own, and listening fails with its reason.
    """
    events = engine.kv_events
    if events is None:
        return engine
    places = [replace(events, data_parallel_rank=number) for number in (rank, *range(most))]
    place = next(filter(_is_free, places), places[0])
    given = {**(engine.kv_events_config or {}), "data_parallel_rank": place.data_parallel_rank}
    return replace(engine, kv_events_config=given)


def _is_free(events: KVEventsConfig) -> bool:
    return _can_be_had(address for address in events.addresses if address is not None)


def _can_be_had(addresses: Iterable[str]) -> bool:
    """Whether an address can be listened on; one to connect to, or without a port, always can."""
    with ExitStack() as closing:
        for address in filter(is_listened_on, addresses):
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            if address.startswith("tcp://") and port.isdecimal():
                family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
                where = (host.strip("[]").replace("*", ""), int(port))
                try:
                    closing.enter_context(socket.create_server(where, family=family))
                except OSError:
                    return False
    return True
