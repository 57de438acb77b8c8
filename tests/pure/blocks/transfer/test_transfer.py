"""Blocks from one engine to another over sockets, without models."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from msgspec import structs

from quire.blocks.store import RecordForm, RecordShelf
from quire.blocks.transfer import (
    BlockFetcher,
    BlockServer,
    FetchedBlocks,
    Identity,
    Missing,
    SharedKey,
)
from quire.blocks.transfer import server as server_module
from quire.blocks.transfer.peers import Peers
from quire.blocks.transfer.server import ANSWER, GREETING, PROOF, WantedBlocks
from quire.core.errors import ConfigError
from quire.core.memory import BlockHash, Content, name_of_state
from quire.kernels.transport import Connection, PeerError, port
from quire.kernels.transport.connection import pieces
from support.live_server import eventually
from support.stored_blocks import FORM, PARTS, content, parts

IDENTITY = Identity({"model": "one"})
NAMES = [content(number).name for number in range(40)]


class Prefill:
    """An engine's blocks, handed to whoever asks."""

    def __init__(self, most: int = 100, key: SharedKey | None = None) -> None:
        self.shelf = RecordShelf(FORM, most * FORM.num_bytes)
        self.server = BlockServer("127.0.0.1", 0, key)
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


def fetcher(
    seconds: float = 5.0, most: int = 100, key: SharedKey | None = None
) -> tuple[BlockFetcher, FetchedBlocks]:
    shelf = FetchedBlocks(FORM, most * FORM.num_bytes)
    return BlockFetcher(shelf, IDENTITY, seconds, key=key), shelf


def fetch(client: BlockFetcher, port: int, names: list[BlockHash]) -> None:
    asyncio.run(client.fetch("127.0.0.1", port, Missing(names)))


def leading(shelf: RecordShelf, names: list[BlockHash]) -> int:
    return next((at for at, name in enumerate(names) if not shelf.has(name)), len(names))


def read(shelf: RecordShelf, number: int) -> None:
    for kv_group, size in enumerate(PARTS):
        shelf.read(content(number), kv_group, [memoryview(bytearray(size))])


STATES = RecordForm(b"another one     ", FORM.block_size, (300,))


def state(depth: int) -> Content:
    return content(depth - 1)._replace(name=name_of_state(NAMES[depth - 1]))


@pytest.mark.parametrize(
    ("kept", "here", "lacking", "found"),
    [
        ((3, 7), (), (0, 10, 10), 7),  # the deepest
        ((3, 7), (), (0, 6, 6), 3),  # that is of use
        ((3, 7), (), (5, 10, 10), 7),  # of which some blocks are known
        ((3,), (5,), (0, 10, 10), 5),  # or that has been fetched already
        ((), (), (0, 10, 10), 0),  # none: no blocks either
        ((9,), (), (0, 6, 10), 9),  # the pool has the last blocks
    ],
)
def test_of_states_the_deepest_comes_with_the_blocks_before_it(
    kept: tuple[int, ...], here: tuple[int, ...], lacking: tuple[int, int, int], found: int
) -> None:
    first, last, most = lacking
    prefill = Prefill()
    prefill.server.close()
    prefill.compute(40)
    server, of_states = BlockServer("127.0.0.1", 0), RecordShelf(STATES, 10 * STATES.num_bytes)
    for depth in kept:
        of_states.write(state(depth), [bytes(300)])
    server.start(prefill.shelf, IDENTITY, of_states)
    shelf = FetchedBlocks(FORM, 20 * FORM.num_bytes)
    states = FetchedBlocks(STATES, 2 * STATES.num_bytes)
    client = BlockFetcher(shelf, IDENTITY, 5.0, states=states)
    for depth in here:
        states.put(
            state(depth).name, b"".join([STATES.head(state(depth), [bytes(300)]), bytes(300)])
        )
    asyncio.run(client.fetch("127.0.0.1", server.port, Missing(NAMES[first:last], NAMES[:most])))
    server.close()
    blocks = [number for number in range(40) if shelf.has(NAMES[number])]
    assert blocks == [*range(first, min(last, found))]
    assert client.num_fetched == len(blocks) + (found in kept) and client.num_failed == 0
    if found:
        into = memoryview(bytearray(b"x" * 300))
        states.read(state(found), 0, [into])
        assert not any(into)


def test_blocks_that_have_no_room_end_what_states_are_wanted_for() -> None:
    missing = Missing(NAMES[2:10], NAMES[:10])
    assert missing.some(8) == missing
    assert missing.some(3) == Missing(NAMES[2:5], NAMES[:5])
    assert Missing(NAMES[2:10]).some(3) == Missing(NAMES[2:5], ())


def test_a_state_of_another_size_or_depth_is_a_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    for depth, record in ((11, bytes(STATES.num_bytes)), (3, b"short"), (0, b"long")):
        monkeypatch.setattr(server_module, "_deepest", lambda *_, one=(depth, record): one)
        prefill = Prefill()
        client = BlockFetcher(
            FetchedBlocks(FORM, 10**6), IDENTITY, 5.0, states=FetchedBlocks(STATES, 10**6)
        )
        missing = Missing(NAMES[:10], NAMES[:10])
        asyncio.run(client.fetch("127.0.0.1", prefill.server.port, missing))
        prefill.server.close()
        assert (client.num_fetched, client.num_failed) == (0, 1)


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
        hanging = [
            asyncio.create_task(client.fetch("127.0.0.1", silent, Missing(other)))
            for _ in range(30)
        ]
        await asyncio.sleep(0.01)  # all of them are under way, or wait for their turn
        await client.fetch("127.0.0.1", prefill.server.port, Missing(NAMES))
        assert leading(shelf, NAMES) == 40
        assert not any(task.done() for task in hanging), "the good one came first"
        await asyncio.gather(*hanging)
        assert client.num_failed == 30
        await client.fetch("127.0.0.1", silent, Missing(other))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(ask(listener.getsockname()[1]))
    assert client.num_failed == 31
    assert any("it was too slow, and is not asked for" in said for said in caplog.messages)


def test_a_peer_that_is_busy_is_waited_for(prefill: Prefill) -> None:
    prefill.compute(40)
    client, shelf = fetcher()

    async def many() -> None:
        await asyncio.gather(
            *(client.fetch("127.0.0.1", prefill.server.port, Missing([name])) for name in NAMES)
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


KEY, OTHER_KEY = SharedKey(b"k" * 16), SharedKey(b"o" * 16)


@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [
        (KEY, KEY, None),
        (KEY, OTHER_KEY, "it has another key (kv_transfer_config: key_file)"),
        (None, KEY, "one of the two has a key, the other none"),
        (KEY, None, "one of the two has a key, the other none"),
    ],
)
def test_blocks_go_between_those_who_have_the_key(
    theirs: SharedKey | None,
    ours: SharedKey | None,
    why: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    prefill = Prefill(key=theirs)
    prefill.compute(10)
    client, shelf = fetcher(key=ours)
    fetch(client, prefill.server.port, NAMES[:10])
    prefill.server.close()
    assert leading(shelf, NAMES[:10]) == (0 if why else 10)
    assert why is None or why in caplog.text


@pytest.mark.parametrize("who", ["serves", "fetches"])
def test_who_does_not_know_the_key_gets_no_block_by_what_others_have_said(who: str) -> None:
    """Not by what proved it on another connection, nor by sending back the server's own proof."""
    prefill = Prefill(key=KEY)
    prefill.compute(1)
    with closing(Connection.to("127.0.0.1", prefill.server.port, 5.0)) as wire:
        wire.send(structs.replace(IDENTITY, nonce=b"n" * 16))
        wire.receive(GREETING, 5.0)
        sent_back = wire.receive(PROOF, 5.0)
        recorded = KEY.proof("fetches", b"of another connection", b"n" * 16)
        wire.send(sent_back if who == "serves" else recorded)
        wire.send(WantedBlocks(NAMES[:1]))
        with pytest.raises(PeerError):
            wire.receive_along(ANSWER, FORM.num_bytes, 5.0)
    prefill.server.close()


def test_who_has_proved_nothing_is_asked_for_no_block() -> None:
    def answer(listener: socket.socket) -> None:
        with closing(Connection(listener.accept()[0])) as wire:
            theirs = wire.receive(GREETING, 5.0)
            wire.send(structs.replace(IDENTITY, nonce=b"n" * 16))
            wire.send(OTHER_KEY.proof("serves", theirs.nonce, b"n" * 16))
            with suppress(PeerError):
                heard.append(wire.receive(PROOF, 5.0))

    heard: list[object] = []
    client, _ = fetcher(key=KEY)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=[listener])
        thread.start()
        fetch(client, listener.getsockname()[1], NAMES[:1])
        thread.join()
    assert not heard and client.num_failed == 1


def test_names_are_sealed() -> None:
    name = KEY.name("10.0.0.7", 14579)
    assert name.startswith("10.0.0.7:14579/") and KEY.has_named(name, "10.0.0.7", 14579)
    for other, host, at in (
        (name, "10.0.0.8", 14579),
        (name, "10.0.0.7", 14578),
        (name[:-1], "10.0.0.7", 14579),
        ("10.0.0.7:14579", "10.0.0.7", 14579),
        (OTHER_KEY.name("10.0.0.7", 14579), "10.0.0.7", 14579),
        ("\ud800", "\ud800", 1),
        ("", "10.0.0.7", 14579),
    ):
        assert not KEY.has_named(other, host, at)
    assert SharedKey().name("10.0.0.7", 14579) == "10.0.0.7:14579"


def test_a_key_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b" " + b"k" * 16 + b"\n")
    assert SharedKey.of(file).has_named(KEY.name("a", 1), "a", 1)
    assert not SharedKey.of(None)
    for secret in (b"k" * 15, b"k" * 1025):
        file.write_bytes(secret)
        with pytest.raises(ConfigError, match="16 to 1,024 bytes"):
            SharedKey.of(file)
    with pytest.raises(ConfigError, match=r"key_file cannot be read: .*: No such file"):
        SharedKey.of(tmp_path / "none")
    with pytest.raises(ConfigError, match="must hold a key"):
        SharedKey.of("/dev/zero")


def test_what_a_peer_calls_its_parts_is_not_repeated(
    prefill: Prefill, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"\nCRITICAL {number}" for number in range(50_000)]
    liar = BlockServer("127.0.0.1", 0)
    liar.start(prefill.shelf, Identity({"model": "one"} | dict.fromkeys(names, "")))
    client, _ = fetcher()
    fetch(client, liar.port, NAMES[:1])
    liar.close()
    assert client.num_failed == 1
    assert "parts that we do not know differ" in caplog.text and "CRITICAL" not in caplog.text


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
