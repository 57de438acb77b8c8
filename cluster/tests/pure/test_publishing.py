"""Replicas publish at ports of their own."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Any

import pytest

from quire.blocks.events.config import KVEventsConfig
from quire.core.errors import ConfigError
from quire.engine.config import EngineConfig
from quire_cluster.publishing import with_place


def events_of(rank: int, most: int, **events: Any) -> KVEventsConfig:
    given = {"enable_kv_cache_events": True, **events}
    placed = with_place(EngineConfig(kv_events_config=given), rank, most).kv_events
    assert placed is not None
    return placed


def test_a_replica_publishes_at_its_rank_or_where_ports_are_free() -> None:
    with ExitStack() as taken:
        while True:  # ports one after the other
            first = taken.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = first.getsockname()[1]
            try:
                taken.enter_context(socket.create_server(("127.0.0.1", port + 2)))
                taken.enter_context(socket.create_server(("127.0.0.1", port + 11)))
                for free in (port + 1, port + 3, port + 10, port + 13):
                    socket.create_server(("", free)).close()
            except (OSError, OverflowError):
                continue
            break
        at = {"endpoint": f"tcp://*:{port}", "replay_endpoint": f"tcp://*:{port + 10}"}
        assert events_of(3, 5, **at).addresses == (f"tcp://*:{port + 3}", f"tcp://*:{port + 13}")
        # 0 and 2 are taken, and of 1 the port for replays.
        for rank in (0, 1, 2):
            assert events_of(rank, 5, **at).data_parallel_rank == 3
        assert events_of(1, 1, **at).data_parallel_rank == 1, "its own, which says why it cannot be"
        # A collector is connected to, whoever is there.
        collector = {"endpoint": f"tcp://127.0.0.1:{port}"}
        assert events_of(2, 5, **collector).addresses == (f"tcp://127.0.0.1:{port + 2}", None)
    assert with_place(EngineConfig(), 3, 5) == EngineConfig()


def test_addresses_of_ranks_are_vllm_s() -> None:
    """``ZmqEventPublisher.offset_endpoint_port``; and sockets with names likewise."""

    def of(rank: int, endpoint: str) -> str:
        return KVEventsConfig(endpoint=endpoint, data_parallel_rank=rank).addresses[0]

    assert of(0, "tcp://*:5557") == "tcp://*:5557"
    assert of(3, "tcp://*:5557") == "tcp://*:5560"
    assert of(1, "tcp://[::]:5557") == "tcp://[::]:5558"
    assert of(2, "ipc:///tmp/events") == "ipc:///tmp/events_dp2"
    with pytest.raises(ConfigError, match="from 1 to 65534"):
        of(1, "tcp://*:65535")
    with pytest.raises(ConfigError, match="data_parallel_rank must be an integer from 0 to"):
        of(-1, "tcp://*:5557")
