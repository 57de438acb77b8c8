"""Blocks from one engine to another over sockets, without models."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from quire.blocks.store import RecordShelf
from quire.blocks.transfer import BlockFetcher, BlockServer, FetchedBlocks, Identity
from quire.blocks.transfer.peers import Peers
from quire.blocks.transfer.server import WantedBlocks
from quire.core.memory import BlockHash
from quire.kernels.transport import port
from quire.kernels.transport.connection import pieces
from support.live_server import eventually
from support.stored_blocks import FORM, PARTS, content, parts

IDENTITY = Identity({"model": "one"})
NAMES = [content(number).name for number in range(40)]


class Prefill:
    """An engine's blocks, handed to whoever asks."""

    def __init__(self, most: int = 100) -> None:
        self.shelf = RecordShelf(FORM, most * FORM.num_bytes)
        self.server = BlockServer("127.0.0.1", 0)
        self.server.start(self.shelf, IDENTITY)

    def compute(self, count: int, step: int = 8) -> None:
        """A prompt of so many blocks, a few in each step, as a scheduler stores them."""
        for start in range(0, count, step):
            self.shelf.used(reversed(NAMES[: start + step]))
            for number in range(start, min(start + step, count)):
                self.shelf.write(content(number), parts(number))


@pytest.fixture
def prefill() -> Iterator[Prefill]:
    made = Prefill()
    yield made
    made.server.close()


def fetcher(seconds: float = 5.0, most: int = 100) -> tuple[BlockFetcher, FetchedBlocks]:
    shelf = FetchedBlocks(FORM, most * FORM.num_bytes)
    return BlockFetcher(shelf, FORM, IDENTITY, seconds), shelf


def fetch(client: BlockFetcher, port: int, names: list[BlockHash]) -> None:
    asyncio.run(client.fetch("127.0.0.1", port, names))


def leading(shelf: RecordShelf, names: list[BlockHash]) -> int:
    return next((at for at, name in enumerate(names) if not shelf.has(name)), len(names))


def read(shelf: RecordShelf, number: int) -> None:
    for kv_group, size in enumerate(PARTS):
        shelf.read(content(number), kv_group, [memoryview(bytearray(size))])


def test_of_a_prompt_larger_than_the_buffer_the_beginning_is_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    prefill = Prefill(most=10)
    prefill.compute(40)
    client, shelf = fetcher()
    fetch(client, prefill.server.port, NAMES)
    prefill.server.close()
    assert leading(shelf, NAMES) == 10
    assert (client.num_fetched, client.num_missing, client.num_failed) == (10, 30, 0)
    assert "it has the first 10 of 40; the rest is computed" in caplog.text
    assert "kv_buffer_size" in caplog.text


def test_prompts_that_a_buffer_does_not_hold_together_keep_their_beginnings(
    prefill: Prefill,
) -> None:
    prefill.compute(40)
    client, shelf = fetcher(most=30)
    fetch(client, prefill.server.port, NAMES[:20])
    fetch(client, prefill.server.port, NAMES[20:])
    assert (leading(shelf, NAMES[:20]), leading(shelf, NAMES[20:])) == (10, 20)
    client.close()


def test_prompts_that_come_at_once_keep_their_beginnings() -> None:
    shelf = FetchedBlocks(FORM, 30 * FORM.num_bytes)
    with shelf.expecting(NAMES[:20]), shelf.expecting(NAMES[20:]):
        for number in range(20):
            shelf.put(NAMES[number], b"1")
            shelf.used([NAMES[39]])  # as a step says, which expects nothing
            shelf.put(NAMES[20 + number], b"2")
    assert leading(shelf, NAMES[:20]) + leading(shelf, NAMES[20:]) == 30
    with suppress(OSError), shelf.expecting(NAMES[:20]):
        raise OSError
    assert shelf.num_bytes == 30 * FORM.num_bytes


def test_the_latest_prompt_is_whole_after_ten_times_what_buffers_hold() -> None:
    prefill, (client, shelf) = Prefill(most=12), fetcher(most=12)
    for start in range(0, 120, 10):
        names = [content(number).name for number in range(start, start + 10)]
        prefill.shelf.used(reversed(names))
        for number in range(start, start + 10):
            prefill.shelf.write(content(number), parts(number))
        fetch(client, prefill.server.port, names)
        assert leading(shelf, names) == 10
    prefill.server.close()
    assert client.num_missing == client.num_failed == 0


def test_nothing_behind_a_missing_block_is_sent(prefill: Prefill) -> None:
    prefill.compute(40)
    prefill.shelf.forget(NAMES[7])
    client, shelf = fetcher()
    fetch(client, prefill.server.port, NAMES)
    assert leading(shelf, NAMES) == 7 == client.num_fetched


def test_a_buffer_that_is_too_small_here_is_told(
    prefill: Prefill, caplog: pytest.LogCaptureFixture
) -> None:
    prefill.compute(40)
    client, shelf = fetcher(most=6)
    fetch(client, prefill.server.port, NAMES)
    assert leading(shelf, NAMES) == 6
    assert "kv_buffer_size keeps 6 of 40 here" in caplog.text


def test_what_came_and_was_never_used_is_counted(prefill: Prefill) -> None:
    prefill.compute(40)
    client, shelf = fetcher(most=10)
    fetch(client, prefill.server.port, NAMES[:10])
    for number in range(4):
        read(shelf, number)
    assert client.num_unused == 0
    fetch(client, prefill.server.port, NAMES[20:30])
    assert client.num_unused == 6


def test_a_peer_that_hangs_stops_nobody_else(
    prefill: Prefill, caplog: pytest.LogCaptureFixture
) -> None:
    prefill.compute(40)
    client, shelf = fetcher(seconds=1.0)
    other = [content(number).name for number in range(50, 60)]

    async def ask(silent: int) -> None:
        hanging = [asyncio.create_task(client.fetch("127.0.0.1", silent, other)) for _ in range(30)]
        await asyncio.sleep(0.01)  # all of them are under way, or wait for their turn
        await client.fetch("127.0.0.1", prefill.server.port, NAMES)
        assert leading(shelf, NAMES) == 40
        assert not any(task.done() for task in hanging), "the good one came first"
        await asyncio.gather(*hanging)
        assert client.num_failed == 30
        await client.fetch("127.0.0.1", silent, other)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(ask(listener.getsockname()[1]))
    assert client.num_failed == 31
    assert any("it was too slow, and is not asked for" in said for said in caplog.messages)


def test_a_peer_that_is_busy_is_waited_for(prefill: Prefill) -> None:
    prefill.compute(40)
    client, shelf = fetcher()

    async def many() -> None:
        await asyncio.gather(
            *(client.fetch("127.0.0.1", prefill.server.port, [name]) for name in NAMES)
        )

    asyncio.run(many())
    assert leading(shelf, NAMES) == 40
    assert client.num_failed == 0


def test_silent_connections_cost_no_thread_and_shut_nobody_out(
    prefill: Prefill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they say nothing, begin something, or greet and ask nothing."""
    monkeypatch.setattr(port, "_SILENCE", 2.0)
    prefill.compute(40)
    before = threading.active_count()
    greeting = b"".join(pieces(IDENTITY))
    with ExitStack() as open_wires:
        wires = [
            open_wires.enter_context(socket.create_connection(("127.0.0.1", prefill.server.port)))
            for _ in range(100)
        ]
        for number, wire in enumerate(wires):
            with suppress(OSError):  # it has been let go
                wire.sendall((b"", greeting, greeting[:5], greeting[:-3])[number % 4])
        assert threading.active_count() <= before  # other tests' may end meanwhile
        for _ in range(20):
            client, shelf = fetcher()
            fetch(client, prefill.server.port, NAMES)
            client.close()
            assert leading(shelf, NAMES) == 40
        for wire in wires:
            wire.settimeout(20)
            with suppress(ConnectionError):
                while wire.recv(1 << 16):
                    pass
        assert not prefill.server._listener._guests, "they are gone in time"


def test_who_takes_no_answer_makes_room(prefill: Prefill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "_SLOW_ANSWER", 0.2)
    prefill.compute(40)
    asks = b"".join([*pieces(IDENTITY), *(200 * pieces(WantedBlocks(NAMES)))])
    with ExitStack() as open_wires:
        for _ in range(64):
            wire = socket.create_connection(("127.0.0.1", prefill.server.port))
            open_wires.enter_context(wire).sendall(asks)
        guests = prefill.server._listener._guests

        def stuck() -> bool:
            late = time.monotonic() - 0.5
            return len(guests) == 64 and all(not each.asks and each.since < late for each in guests)

        eventually(stuck)
        client, shelf = fetcher()
        fetch(client, prefill.server.port, NAMES)
        client.close()
        assert leading(shelf, NAMES) == 40


def test_peers_rest_for_longer_each_time() -> None:
    now, address, other = 0.0, ("a", 1), ("b", 1)
    peers = Peers(lambda: now)

    async def rest() -> None:
        nonlocal now
        for seconds in (5.0, 10.0, 20.0, 40.0, 60.0, 60.0):
            assert await peers.begin(address) is None
            peers.hung(address)
            peers.hung(address)  # another one that waited for the same
            peers.end(address)
            now += seconds - 0.5
            assert "is not asked for 0.5 s" in str(await peers.begin(address))
            assert await peers.begin(other) is None, "nobody else rests"
            peers.end(other)
            now += 0.5
        assert await peers.begin(address) is None
        peers.answered(address)
        peers.hung(address)
        peers.end(address)
        now += 5.0
        assert await peers.begin(address) is None

    asyncio.run(rest())


def test_peers_are_forgotten_in_time() -> None:
    """Requests name them, so that there may be any number."""
    peers = Peers()

    async def many() -> None:
        for number in range(5000):
            assert await peers.begin(("a", number)) is None
            peers.hung(("a", number))
            peers.end(("a", number))

    asyncio.run(many())
    assert len(peers._peers) <= 1024
