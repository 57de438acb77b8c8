"""Events come in order and numbered; who does not read costs nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quire.blocks.events import EventPublisher
from quire.blocks.events.config import KVEventsConfig
from quire.blocks.events.events import BlocksRemoved
from quire.core.errors import ConfigError
from quire.core.memory import KV
from support.vllm_events import Subscriber, replay


def removed(number: int) -> list[BlocksRemoved]:
    return [BlocksRemoved(0, (number.to_bytes(16, "big"),))]


@contextmanager
def published(at: Path, *, start: bool = True, **options: Any) -> Iterator[EventPublisher]:
    publisher = EventPublisher(config_at(at, **options))
    if start:
        publisher.start(4, [KV()])
    try:
        yield publisher
    finally:
        publisher.close()


def config_at(at: Path, **options: Any) -> KVEventsConfig:
    addresses = {"endpoint": f"ipc://{at}/events", "replay_endpoint": f"ipc://{at}/replay"}
    return KVEventsConfig(True, **{**addresses, **options})


def first_heard(publisher: EventPublisher, subscriber: Subscriber) -> int:
    """Publish until the subscriber is connected; the number that it has heard."""
    for _ in range(200):
        publisher.publish(removed(publisher.num_published))
        heard = subscriber.next(0.05)
        if heard is not None:
            return heard[0]
    raise AssertionError("nothing is heard")


def test_in_order_and_again_for_who_asks(tmp_path: Path) -> None:
    with published(tmp_path, topic="kv@here@model", buffer_steps=20) as publisher:
        subscriber = Subscriber(f"ipc://{tmp_path}/events", "kv@here")
        other = Subscriber(f"ipc://{tmp_path}/events", "kv@there")
        last = first_heard(publisher, subscriber)
        for _ in range(publisher.num_published, last + 31):
            publisher.publish(removed(publisher.num_published))
        for number in range(last + 1, last + 31):
            heard = subscriber.next()
            assert heard is not None and heard[0] == number
            assert heard[1].events[0].block_hashes == [number], "each batch under its own number"
        assert other.next(0.05) is None
        again = replay(f"ipc://{tmp_path}/replay")
        assert [number for number, _ in again] == list(range(last + 11, last + 31)), "what is kept"
        later = replay(f"ipc://{tmp_path}/replay", last + 29)
        assert [(n, b.events[0].block_hashes) for n, b in later] == [
            (n, [n]) for n in (last + 29, last + 30)
        ]
        subscriber.close()
        other.close()


def test_what_is_too_much_is_dropped_and_its_numbers_are_missing(tmp_path: Path) -> None:
    """Whoever publishes does not wait for the thread that sends, here not even begun."""
    with published(tmp_path, start=False, max_queue_size=3) as publisher:
        for number in range(5):
            publisher.publish(removed(number))
        assert (publisher.num_published, publisher.num_dropped) == (3, 2)
        publisher.start(4, [None])
        assert [number for number, _ in replay_of(tmp_path, 3)] == [0, 1, 2]
        publisher.publish(removed(5))
        again = replay_of(tmp_path, 4)
        assert [number for number, _ in again] == [0, 1, 2, 5]
        assert all(batch.data_parallel_rank == 0 for _, batch in again)


def test_a_rank_publishes_at_places_of_its_own_and_says_which_it_is(tmp_path: Path) -> None:
    with published(tmp_path), published(tmp_path, data_parallel_rank=2) as publisher:
        publisher.publish(removed(7))
        for _ in range(100):
            if again := replay(f"ipc://{tmp_path}/replay_dp2"):
                break
        assert [batch.data_parallel_rank for _, batch in again] == [2]
        assert publisher.endpoint == f"ipc://{tmp_path}/events_dp2"
        assert replay(f"ipc://{tmp_path}/replay") == []


def replay_of(at: Path, count: int) -> list[tuple[int, Any]]:
    for _ in range(100):
        if len(again := replay(f"ipc://{at}/replay")) == count:
            return again
    raise AssertionError("not sent")


def test_who_does_not_read_misses_what_others_hear(tmp_path: Path) -> None:
    with published(tmp_path, hwm=4) as publisher:
        lazy = Subscriber(f"ipc://{tmp_path}/events", most=1)
        eager = Subscriber(f"ipc://{tmp_path}/events")
        first_heard(publisher, lazy)
        first_heard(publisher, eager)
        while eager.next(0.05) is not None:
            pass
        big = [BlocksRemoved(0, [bytes(16)] * 5_000)]
        for _ in range(100):
            publisher.publish(big)
            assert eager.next() is not None
        assert publisher.num_dropped == 0
        kept = 0  # for who reads at last: hwm, and what is in the buffers of sockets
        while lazy.next(0.2) is not None:
            kept += 1
        assert kept < 50
        eager.close()
        lazy.close()


def test_what_waits_is_sent_before_the_end(tmp_path: Path) -> None:
    with published(tmp_path) as publisher:
        subscriber = Subscriber(f"ipc://{tmp_path}/events")
        heard = first_heard(publisher, subscriber)
        for _ in range(200):
            publisher.publish(removed(7))
        end = publisher.num_published - 1
    while heard < end:
        batch = subscriber.next()
        assert batch is not None
        heard = batch[0]
    subscriber.close()


@pytest.mark.parametrize("question", [[b"x"], [b"", b"short"], [b"", b"12345678", b"more"]])
def test_a_question_that_is_none_ends_nothing(tmp_path: Path, question: list[bytes]) -> None:
    import zmq

    with published(tmp_path) as publisher, zmq.Context() as context:
        asker = context.socket(zmq.DEALER)
        asker.connect(f"ipc://{tmp_path}/replay")
        asker.send_multipart(question)
        publisher.publish(removed(0))
        assert len(replay_of(tmp_path, 1)) == 1
        asker.close(linger=0)


def test_a_question_takes_no_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is not received: who asks so is hung up on, however much is to come."""
    import zmq

    with published(tmp_path) as publisher, zmq.Context() as context:
        asker = context.socket(zmq.DEALER)
        asker.connect(f"ipc://{tmp_path}/replay")
        asker.send_multipart([b"", bytes(2**20)])
        publisher.publish(removed(0))
        asker.send_multipart([b"", bytes(8)])  # by a new connection
        assert asker.poll(10_000), "and served again"
        assert len(replay_of(tmp_path, 1)) == 1
        asker.close(linger=0)
    assert "a request to replay" not in caplog.text


def test_addresses_that_cannot_be_had_are_told_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"replay_endpoint {address} .*: Address already in"):
            EventPublisher(config_at(tmp_path, replay_endpoint=address))
    with pytest.raises(ConfigError, match="endpoint tcp://no-port cannot be used"):
        EventPublisher(config_at(tmp_path, endpoint="tcp://no-port"))
