"""Connections between processes: whole messages, in order, within bounds, whoever is at the end."""

from __future__ import annotations

import random
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec import Struct
from msgspec.msgpack import Decoder, encode

from quire.kernels.transport import Connection, Guest, PeerError, Port, Stranger, TooSlow
from quire.kernels.transport.connection import pieces

LIMIT = 20.0  # seconds, of what is over in milliseconds


class Said(Struct, tag=True):
    """A message."""

    text: str


class Counted(Struct, tag=True):
    """Another."""

    number: int


ANY: Decoder[Struct] = Decoder(Said | Counted)
HEAD = struct.Struct("<4sIQ")


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """One of us, and a socket of who may send anything."""
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    yield connection, theirs
    connection.close()
    theirs.close()


def test_messages_come_whole_and_in_order() -> None:
    """Over TCP as over a pair of sockets, in whatever pieces."""
    payloads = [random.Random(i).randbytes(size) for i, size in enumerate((0, 1, 5_000_000, 9))]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = Connection.to("127.0.0.1", listening.getsockname()[1], LIMIT)
        there = Connection(listening.accept()[0], silence=5.0)
    assert (here.peer, there.own_address) == ("127.0.0.1", "127.0.0.1")
    for one, other in ((here, there), tuple(map(Connection, socket.socketpair()))):
        with ThreadPoolExecutor(1) as threads:
            for number, payload in enumerate(payloads):
                sending = threads.submit(one.send, Counted(number), payload, LIMIT)
                found = other.receive_along(ANY, len(payload), LIMIT)
                assert found == (Counted(number), payload)
                sending.result()
        other.send(Said("yes"))
        assert one.receive(ANY, LIMIT) == Said("yes")
        one.close()
        other.close()


def test_messages_of_several_threads_are_not_mixed() -> None:
    one, other = map(Connection, socket.socketpair())
    with ThreadPoolExecutor(4) as threads:
        for number in range(40):
            threads.submit(one.send, Counted(number), bytes([number]) * 100_000)
        for _ in range(40):
            message, payload = other.receive_along(ANY, 100_000, LIMIT)
            assert isinstance(message, Counted) and payload == bytes([message.number]) * 100_000
    one.close()
    other.close()


def framed(content: bytes, along: int = 0) -> bytes:
    return HEAD.pack(b"QRE2", len(content), along) + content


@pytest.mark.parametrize(
    "says",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"QRE1" + framed(encode({"type": "Said", "text": ""}))[4:],
        HEAD.pack(b"QRE2", 2**32 - 1, 0),
        HEAD.pack(b"QRE2", 0, 2**63),
        framed(encode({"type": "Said", "text": ""}), 11) + bytes(11),
        framed(b"[]"),
        framed(b""),
        framed(encode({"type": "Nothing"})),
        framed(encode({"type": "Counted", "number": True})),
        framed(encode({"type": "Counted", "number": "1"})),
        framed(encode({"type": "Said"})),
        framed(b"\x82\xa4type\xa4Said\xa4text\xa2\xff\xff"),
        framed(b"\x91" * 100_000),
    ],
)
def test_what_is_no_message_takes_no_memory(
    ends: tuple[Connection, socket.socket], says: bytes
) -> None:
    connection, theirs = ends
    sending = threading.Thread(target=theirs.sendall, args=[says])
    sending.start()
    tracemalloc.start()
    try:
        with pytest.raises(Stranger, match="does not speak as Quire does"):
            connection.receive_along(ANY, 10, LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    sending.join()


def test_who_is_slow_or_gone_is_named(ends: tuple[Connection, socket.socket]) -> None:
    connection, theirs = ends
    theirs.sendall(framed(encode({"type": "Said", "text": "beginning"}))[:-3])
    with pytest.raises(TooSlow, match=r"it has not answered for 0\.05 seconds"):
        connection.receive(ANY, 0.05)
    with pytest.raises(TooSlow):  # nobody reads
        connection.send(Said("much"), bytes(10_000_000), 0.05)
    theirs.close()
    acts: list[Callable[[], object]] = [
        lambda: connection.receive(ANY, LIMIT),
        lambda: connection.send(Said("more")),
        lambda: Connection.to("127.0.0.1", 1, LIMIT),
    ]
    for act in acts:
        with pytest.raises(PeerError, match=r"its connection was closed|no connection: "):
            act()


def test_a_close_ends_what_anybody_waits_in() -> None:
    one, other = map(Connection, socket.socketpair())
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(each.receive, ANY) for each in (one, other)]
        one.close()
        for each in waiting:
            with pytest.raises(PeerError):
                each.result(LIMIT)
    other.close()


def test_a_port_goes_on_whatever_one_guest_does(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(guest: Guest) -> None:
        while True:
            message = await guest.receive(ANY)
            if isinstance(message, Counted):
                raise ArithmeticError("a bug")
            await guest.send(message, b"x" * 3_000_000)

    listener = Port("127.0.0.1", 0)
    with pytest.raises(OSError, match="in use"):
        Port("127.0.0.1", listener.port)
    listener.start(serve, "test")
    first, second = (Connection.to("127.0.0.1", listener.port, LIMIT) for _ in range(2))
    first.send(Counted(1))
    with pytest.raises(PeerError):
        first.receive(ANY, LIMIT)
    for part in pieces(Said("slowly")):
        for at in range(len(part)):
            second._wire.sendall(part[at : at + 1])
    assert second.receive_along(ANY, 1 << 22, LIMIT) == (Said("slowly"), b"x" * 3_000_000)
    assert "a bug" in caplog.text
    second.send(Said("the last"))
    listener.close()
    with pytest.raises(PeerError):
        Connection.to("127.0.0.1", listener.port, LIMIT)
    first.close()
    second.close()
