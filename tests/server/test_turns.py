"""Many who come in the same instant: one begins in each turn of the event loop."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from quire.http.chats import conversation as conversations
from quire.http.chats.conversation import ConversationTurn
from quire.http.guards.connections import ClientConnection, Connections
from quire.http.guards.envelope import CancelOnDisconnect
from quire.http.guards.turns import Haste, Turnstile
from support.live_server import MODEL, LiveServer

READ = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
WORK = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000\r\n\r\n"


class Turns:
    """Counts the turns of the event loop, and in which of them something was done."""

    def __init__(self) -> None:
        self.done: list[tuple[int, str]] = []
        self._number = 0
        self._tick()

    def _tick(self) -> None:
        self._number += 1
        self._next = asyncio.get_running_loop().call_soon(self._tick)

    def note(self, what: str) -> None:
        self.done.append((self._number, what))

    @property
    def order(self) -> str:
        return "".join(what for _, what in self.done)

    async def end(self) -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        self._next.cancel()
        assert len({number for number, _ in self.done}) == len(self.done), "two in one turn"


def test_those_who_ask_take_turns() -> None:
    async def main() -> None:
        turns, turnstile = Turns(), Turnstile()
        for asker in "aaaabbc":
            turnstile.wait(asker, partial(turns.note, asker))
        assert turns.order == "a"  # the first at once
        await turns.end()
        assert turns.order == "aabcaba"

    asyncio.run(main())


def test_a_long_line_is_let_through_in_haste() -> None:
    """Other threads would keep the interpreter's lock from it, as long as they may."""
    usual = sys.getswitchinterval()

    async def main(count: int) -> list[bool]:
        turns, haste = Turns(), Haste()
        lines = Turnstile(haste), Turnstile(haste)
        hastened = []

        def go() -> None:
            turns.note("")
            hastened.append(sys.getswitchinterval() < usual)

        for line in lines:
            for number in range(count):
                line.wait(number, go)
        for _ in range(2 * count):
            await asyncio.sleep(0)
        turns._next.cancel()
        assert len(hastened) == 2 * count
        return hastened

    assert not any(asyncio.run(main(64))), "a batch, which shares the lock with what computes it"
    assert sum(asyncio.run(main(1_000))) > 1_800
    assert sys.getswitchinterval() == usual


class Wire(asyncio.Transport):
    """A client's end that is never read."""

    def __init__(self, host: str, closing: Callable[[], None] = lambda: None) -> None:
        super().__init__({"peername": [host, 1], "sockname": ["x", 80]})
        self.closing = closing
        self.closed = False
        self.paused = False

    def write(self, data: Any) -> None:
        pass

    def close(self) -> None:
        self.closed = True
        self.closing()

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


Connect = Callable[..., ClientConnection]


@contextmanager
def connecting(app: Any, most: int = 100) -> Iterator[Connect]:
    """Makes connections to an app, each of which has received something."""
    config = uvicorn.Config(app, log_config=None, lifespan="off", proxy_headers=False)
    others, state = Connections(most, 60.0), ServerState()

    def connect(received: bytes, host: str = "a") -> ClientConnection:
        connection = ClientConnection(others, config=config, server_state=state, app_state={})
        connection.connection_made(Wire(host))
        connection.data_received(received)
        return connection

    yield connect
    for connection in list(state.connections):
        connection.connection_lost(None)


def test_requests_of_the_same_instant_begin_one_after_the_other() -> None:
    async def main() -> None:
        turns = Turns()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            turns.note(scope["client"][0] if scope["method"] == "POST" else "h")

        with connecting(app) as connect:
            for _ in range(8):
                connect(WORK)
            for _ in range(2):
                connect(WORK, "b")
            connect(READ)  # of the first client, whose work is no reason to seem dead
            await turns.end()
        assert turns.order == "aabhabaaaaa"

    asyncio.run(main())


def test_who_has_hung_up_is_let_go_when_it_is_his_turn() -> None:
    async def main() -> None:
        turns = Turns()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            pass

        with connecting(app) as connect:
            clients = [connect(b"") for _ in range(20)]
            for client in clients:
                client.transport = Wire("a", partial(turns.note, "x"))
                assert client.eof_received(), "or it would be closed in this turn"
            await turns.end()
            assert turns.order == "x" * 20
            client.transport._extra["sslcontext"] = object()  # type: ignore[attr-defined]
            assert not client.eof_received(), "TLS knows no connection that is half closed"

    asyncio.run(main())


def test_who_has_gone_before_his_turn_begins_nothing() -> None:
    async def main() -> None:
        turns = Turns()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            turns.note(scope["client"][0])

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: turns.note(str(context)))
        with connecting(app) as connect:
            connect(WORK)
            gone = connect(WORK, "b")
            gone.transport.close()
            gone.connection_lost(None)
            connect(WORK, "c")
            await turns.end()
        assert turns.order == "ac"

    asyncio.run(main())


def test_who_waits_for_his_turn_is_not_closed_for_another() -> None:
    async def main() -> None:
        turns = Turns()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            turns.note(scope["client"][0])
            await receive()

        with connecting(app, most=2) as connect:
            begun, held = connect(WORK), connect(WORK, "b")
            held.data_received(b"x" * 500)
            assert held.transport.paused  # type: ignore[attr-defined]
            other = connect(WORK, "c")
            assert begun.transport.is_closing()  # whose client could send the rest
            assert connect(WORK, "d").transport.is_closing()
            assert not held.transport.is_closing() and not other.transport.is_closing()
            await turns.end()
            assert not held.transport.paused  # type: ignore[attr-defined]
        assert turns.order == "abc"

    asyncio.run(main())


def test_a_body_is_told_when_there_is_much_of_it_or_all() -> None:
    told: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            told.append(len(message["body"]))
            more = message["more_body"]

    async def main() -> None:
        with connecting(app) as connect:
            connection = connect(WORK)
            for _ in range(2000):
                await asyncio.sleep(0)
                connection.data_received(b" ")
            for _ in range(10):
                await asyncio.sleep(0)

    asyncio.run(main())
    assert told == [1025, 975]


@pytest.mark.parametrize(
    "received",
    [b"POST / HTT", WORK, READ, READ + WORK, 3 * READ + WORK, b"GARBAGE\r\n\r\n"],
    ids=["head", "body", "answered", "two", "pipelined", "malformed"],
)
@pytest.mark.parametrize("gone", [None, ConnectionResetError()], ids=["closed", "reset"])
def test_who_leaves_leaves_no_garbage(received: bytes, gone: Exception | None) -> None:
    """To look for that of thousands would keep everybody waiting."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        start = {"type": "http.response.start", "status": 200, "headers": []}
        await send(start)  # type: ignore[arg-type]
        await send({"type": "http.response.body", "body": b""})

    async def main() -> None:
        with connecting(app) as connect:
            client = connect(received)
            for _ in range(20):  # all is answered that can be
                await asyncio.sleep(0)
            client.connection_lost(gone)
            left.append(weakref.ref(client))
            del client
            for _ in range(20):
                await asyncio.sleep(0)

    left: list[weakref.ref[ClientConnection]] = []
    gc.disable()
    try:
        asyncio.run(main())
        assert left[0]() is None, "only a look for garbage finds it"
    finally:
        gc.enable()


def test_those_who_hang_up_together_are_let_go_one_after_the_other() -> None:
    async def main() -> None:
        turns, gone = Turns(), asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                turns.note(".")

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            raise AssertionError("nobody is there")

        scope = {"type": "http", "method": "POST"}
        guarded = CancelOnDisconnect(app)
        asked = [asyncio.create_task(guarded(scope, receive, send)) for _ in range(5)]
        await asyncio.sleep(0.01)
        gone.set()
        await asyncio.gather(*asked)
        await turns.end()
        assert turns.order == "....."

    asyncio.run(main())


def test_who_hangs_up_once_the_answer_is_done_cancels_nothing() -> None:
    """One of those who leave together is let go in a later turn: by then his answer may be done."""

    async def main() -> None:
        gone, ended = asyncio.Event(), []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await gone.wait()
            await asyncio.sleep(0)

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            raise AssertionError("nobody is there")

        guarded = CancelOnDisconnect(app)

        async def serve(number: int) -> None:
            await guarded({"type": "http", "method": "POST"}, receive, send)
            await asyncio.sleep(0.01)  # what a server does after an answer
            ended.append(number)

        asked = [asyncio.create_task(serve(number)) for number in range(3)]
        await asyncio.sleep(0.01)
        gone.set()
        await asyncio.gather(*asked)
        assert ended == [0, 1, 2]

    asyncio.run(main())


def conversation(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x" * 100}] * number}


@pytest.mark.parametrize(
    ("path", "large", "small"),
    [
        ("/v1/chat/completions", conversation(300), conversation(2)),
        (
            "/v1/messages",
            conversation(300) | {"max_tokens": 1},
            conversation(2) | {"max_tokens": 1},
        ),
        ("/v1/responses", {"input": conversation(300)["messages"]}, {"input": "x"}),
        ("/api/chat", conversation(300) | {"truncate": False}, conversation(2)),
        ("/tokenize", conversation(300), conversation(2)),
    ],
)
def test_what_is_made_of_a_large_body_is_made_beside_the_event_loop(
    shared: LiveServer,
    path: str,
    large: dict[str, Any],
    small: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that others have their turn while it is, whatever of it is refused in the end."""
    threads: list[str] = []

    def noting(work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            threads.append(threading.current_thread().name)
            return work(*arguments, **options)

        return noted

    monkeypatch.setattr(ConversationTurn, "__init__", noting(ConversationTurn.__init__))
    monkeypatch.setattr(conversations, "for_template", noting(conversations.for_template))
    shared.http.post(path, json={"model": MODEL, **large})
    assert set(threads) == {"quire-json_0"} and len(threads) == 2
    threads.clear()
    shared.http.post(path, json={"model": MODEL, **small})
    assert threads and "quire-json_0" not in threads


class Held:
    """A connection that counts how often it is asked whether something lies there unread."""

    asked = 0

    def __init__(self, held: bytes) -> None:
        self._held, self.waits_as, self.is_cut = held, None, False

    @property
    def held(self) -> bytes:
        Held.asked += 1
        return self._held

    def read(self, others: Any) -> None:
        self._held = b""
        others.is_read(self)

    def cut(self) -> None:
        self.is_cut = True


def test_room_is_found_without_a_look_at_all_who_have_sent_something() -> None:
    """Who has waited longest goes, of those of whom all is read; who is passed over keeps its
    place.
    """
    others: Any = Connections(1_000, 10.0)
    many = [Held(b"GET" if number % 2 else b"") for number in range(1_000)]
    for one in many:
        assert others.admit(one)
    for _ in range(400):
        assert others.admit(Held(b""))
    assert [one.is_cut for one in many] == [n % 2 == 0 and n < 800 for n in range(1_000)]
    many[701].read(others)
    many[3].read(others)
    for _ in range(2):
        assert others.admit(Held(b""))
    assert many[3].is_cut and many[701].is_cut
    assert Held.asked <= 1_200
    for _ in range(5_000):
        others.works(many[5])
        others.waits(many[5])
    assert len(others._longest) <= 3_000


def test_who_was_passed_over_is_the_longest_again_once_it_is_read() -> None:
    async def main() -> None:
        turns = Turns()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            pass

        with connecting(app, most=3) as connect:
            first, second, third = (connect(WORK[:9], client) for client in "abc")
            fourth, fifth = connect(b""), connect(b"")
            assert first.transport.is_closing() and fourth.transport.is_closing()
            assert second.held and third.held
            await turns.end()
            connect(b"")
            assert second.transport.is_closing() and not fifth.transport.is_closing()

    asyncio.run(main())
