"""When sessions expire, whose they are, and how much one may hold, on a clock of the tests' own."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.capabilities.sessions import Ring, SessionManager, SessionRules
from quire.core.errors import (
    RequestError,
    SessionBusyError,
    TooManySessionsError,
    UnknownSessionError,
)
from quire.core.memory import PagedAllocator, Window
from quire.engine.async_engine import AsyncEngine
from quire.engine.capabilities import Capabilities
from quire.engine.driver import Driver
from quire.engine.engine import Engine
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.engine.streaming_session import StreamingSession
from quire.text.params import SamplingParams
from quire.text.tokenizer import load_tokenizer
from support.fake_model import FakeExecutor, FakeLayer, Sight
from support.schedulers import make_scheduler

TOKENIZER = load_tokenizer(Path(quire.__file__).parent / "models/demo")
VERBS = ("append", "generate", "hard_cut", "soft_cut", "recompute", "close")
TIMEOUT = 100.0
ONE_TOKEN = SamplingParams(max_tokens=1, ignore_eos=True)


class Managed:
    """An engine over the fake model, its sessions, and the time."""

    def __init__(self, timeout: float = TIMEOUT, window: int | None = None, **options: Any) -> None:
        self.now = 1000.0
        allocator = PagedAllocator(40, 4, 0, window and Window(window, 32, 0))
        executor = FakeExecutor(40, 4)
        executor.layers = [FakeLayer(40, 4, 0, Sight(window, 0))]
        scheduler = make_scheduler(allocator)
        longest = None if window else 100
        rules = SessionRules(timeout, longest, **options)
        input_processor = InputProcessor(
            TOKENIZER,
            ModelOutputs(4096, [0]),
            max_model_len=longest,
            default_max_tokens=100,
            seed=0,
        )

        def clock() -> float:
            return self.now

        self.engine = Engine(
            scheduler,
            executor,
            input_processor,
            capabilities=Capabilities(SessionManager(rules, clock)),
            clock=clock,
        )
        self.sessions = self.engine.sessions

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds."""
        usage = self.engine.scheduler.allocator.usage()
        return (usage.capacity - usage.cached - usage.free) // 4

    def say(self, name: str) -> None:
        """One turn, with nine tokens of input."""
        self.sessions.append(name, [5] * 9)
        self.engine.add_turn(f"turn-{self.now}-{name}", name, ONE_TOKEN)
        while self.engine.has_work:
            self.engine.step()


def test_an_idle_session_is_gone_once_its_time_is_over() -> None:
    managed = Managed()
    managed.sessions.open("a")
    managed.say("a")
    assert managed.num_held == 3
    managed.now += TIMEOUT - 0.001
    assert managed.sessions.get("a").num_input == 0
    assert [s.session_id for s in managed.sessions.all()] == ["a"]
    assert managed.sessions.num_open == 1
    managed.now += 0.001
    with pytest.raises(UnknownSessionError, match=r"may have expired: session_timeout is 100 sec"):
        managed.sessions.get("a")
    assert managed.sessions.all() == [] and managed.sessions.num_open == 0
    managed.sessions.close_expired()
    assert managed.num_held == 0 and len(managed.engine.scheduler.sessions) == 0


@pytest.mark.parametrize("verb", [*VERBS, "open"])
def test_whatever_is_asked_next_closes_it(verb: str) -> None:
    managed = Managed()
    sessions = managed.sessions
    for name in ("old", "new"):
        sessions.open(name)
    managed.say("old")
    managed.now += 60
    managed.say("new")
    managed.now += 60
    {
        "append": lambda: sessions.append("new", [1]),
        "generate": lambda: managed.say("new"),
        "hard_cut": lambda: sessions.hard_cut("new"),
        "recompute": lambda: sessions.recompute("new", 3),
        "soft_cut": lambda: sessions.soft_cut("new", -1.0, 0),
        "close": lambda: sessions.end("new"),
        "open": lambda: sessions.open("third"),
    }[verb]()
    left = {one.request.request_id for one in managed.engine.scheduler.sessions.resting()}
    assert left == {"open": {"new", "third"}, "close": set()}.get(verb, {"new"})
    if verb in ("append", "hard_cut", "recompute", "soft_cut"):
        managed.now += TIMEOUT - 1  # from when it was used last
        sessions.get("new")


@pytest.mark.parametrize("verb", VERBS)
def test_an_expired_session_can_do_nothing(verb: str) -> None:
    managed = Managed()
    sessions = managed.sessions
    sessions.open("a")
    managed.say("a")
    managed.now += TIMEOUT
    with pytest.raises(UnknownSessionError):
        {
            "append": lambda: sessions.append("a", [1]),
            "generate": lambda: managed.say("a"),
            "hard_cut": lambda: sessions.hard_cut("a"),
            "recompute": lambda: sessions.recompute("a", 3),
            "soft_cut": lambda: sessions.soft_cut("a", -1.0, 0),
            "close": lambda: sessions.end("a"),
        }[verb]()
    assert managed.num_held == 0


@pytest.mark.parametrize("end", ["done", "aborted", "failed"])
def test_a_busy_session_never_expires_and_is_idle_from_its_turn_s_end(end: str) -> None:
    managed = Managed()
    managed.sessions.open("a")
    managed.sessions.append("a", [5] * 9)
    managed.engine.add_turn("turn", "a", SamplingParams(max_tokens=3, ignore_eos=True))
    with pytest.raises(SessionBusyError):
        managed.engine.add_turn("another", "a", ONE_TOKEN)
    managed.engine.step()
    managed.now += 50 * TIMEOUT
    managed.sessions.close_expired()
    assert managed.sessions.get("a").turn is not None
    if end == "aborted":
        assert managed.engine.abort("turn")
    elif end == "failed":
        managed.engine.executor = BrokenExecutor(40, 4)
        managed.engine.step()
    while managed.engine.has_work:
        managed.engine.step()
    managed.now += TIMEOUT - 1
    assert managed.sessions.get("a").turn is None
    managed.now += 1
    with pytest.raises(UnknownSessionError):
        managed.sessions.get("a")


class BrokenExecutor(FakeExecutor):
    def execute(self, step: Any) -> Any:
        raise RuntimeError("broken")


def test_a_refused_turn_does_not_make_a_session_busy() -> None:
    managed = Managed()
    managed.sessions.open("a")
    with pytest.raises(RequestError, match="append something"):
        managed.engine.add_turn("turn", "a", ONE_TOKEN)
    managed.now += TIMEOUT
    with pytest.raises(UnknownSessionError):
        managed.sessions.get("a")


def test_0_is_never() -> None:
    managed = Managed(timeout=0.0)
    managed.sessions.open("a")
    managed.now += 1e12
    managed.sessions.close_expired()
    managed.sessions.get("a")
    managed.sessions.end("a")
    with pytest.raises(UnknownSessionError, match=r"session a is not open$"):
        managed.sessions.get("a")


def test_one_client_cannot_take_all() -> None:
    managed = Managed(max_num_sessions=5, max_sessions_per_client=2)
    sessions = managed.sessions
    for name in ("a", "b"):
        sessions.open(name, client="anna")
    with pytest.raises(TooManySessionsError, match=r"this client has max_sessions_per_client, 2,"):
        sessions.open("c", client="anna")
    for name in ("d", "e"):
        sessions.open(name, client="")  # who give no name are one client
    with pytest.raises(TooManySessionsError, match="max_sessions_per_client"):
        sessions.open("f", client="")
    sessions.open("g", client="bert")
    with pytest.raises(TooManySessionsError, match="max_num_sessions, 5, are open"):
        sessions.open("h", client="bert")
    assert [s.session_id for s in sessions.all() if s.client == "anna"] == ["a", "b"]
    sessions.end("a")
    sessions.open("c", client="anna")
    managed.now += TIMEOUT
    for name in ("i", "j"):  # the expired do not count
        sessions.open(name, client="anna")


def test_the_process_s_own_sessions_are_nobody_s_share() -> None:
    managed = Managed(max_num_sessions=3, max_sessions_per_client=1)
    for name in ("a", "b", "c"):
        managed.sessions.open(name)
    assert [one.client for one in managed.sessions.all()] == [None] * 3


def test_in_python_an_expired_session_is_left_in_peace() -> None:
    managed = Managed()
    with StreamingSession(Driver(managed.engine), "a", SamplingParams) as session:
        session.append([5] * 9)
        managed.now += TIMEOUT
        with pytest.raises(UnknownSessionError, match="may have expired"):
            session.generate(ONE_TOKEN)
    with pytest.raises(UnknownSessionError):
        session.close()


def test_a_turn_has_its_session_s_salt() -> None:
    managed = Managed()
    managed.sessions.open("a", "salt")
    managed.sessions.append("a", [5])
    session, inputs = managed.sessions.get("a"), managed.engine.input_processor
    ready = inputs.prepare_params(ONE_TOKEN)
    prepared = inputs.prepare_turn("turn", session, session.history, ready, managed.now)
    assert prepared.request.cache_salt == "salt"


def test_what_waits_for_a_turn_is_bounded_under_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.capabilities.sessions._MOST_INPUT", 30)
    managed = Managed(window=16)
    managed.sessions.open("a")
    managed.sessions.append("a", [5] * 21)
    with pytest.raises(RequestError, match=r"21 tokens wait .* at most 30") as no:
        managed.sessions.append("a", [5] * 10)
    assert no.value.field == "input"
    managed.say("a")
    for _ in range(20):  # a session that generates has no end
        managed.sessions.append("a", [5] * 21)
        managed.say("a")
    assert len(managed.sessions.get("a").history) > 600


# 90 + 9 + 1 fit, 91 + 9 + 1 are too many.
@pytest.mark.parametrize(("first", "most"), [(9, 100), (10, 91)])
def test_without_a_window_a_session_that_recomputes_never_ends(first: int, most: int) -> None:
    """Its turns are those of one whose client recomputes; what is refused changes nothing."""
    by_itself, by_hand = Managed(ring=Ring(3, 100)), Managed(ring=Ring(3, 100))
    by_itself.sessions.open("a", recompute_last_n=20)
    by_hand.sessions.open("a")
    for managed in (by_itself, by_hand):
        managed.sessions.append("a", [6] * (first - 9))
    lengths = []
    for _ in range(25):
        by_itself.sessions.append("a", [5] * 9)
        if len(by_hand.sessions.get("a").history) + 9 + 1 > 100:
            by_hand.sessions.recompute("a", 20)
            assert len(by_hand.sessions.get("a").history) == 3 + 20
        by_hand.sessions.append("a", [5] * 9)
        history = list(by_itself.sessions.get("a").history)
        for managed in (by_itself, by_hand):
            with pytest.raises(RequestError, match=r"max_tokens"):
                managed.engine.add_turn("no", "a", SamplingParams(max_tokens=98))
            if managed is by_itself:
                assert list(managed.sessions.get("a").history) == history
            managed.engine.add_turn(f"turn-{len(lengths)}", "a", ONE_TOKEN)
            while managed.engine.has_work:
                managed.engine.step()
        lengths.append(len(by_itself.sessions.get("a").history))
        assert by_itself.sessions.get("a").history == by_hand.sessions.get("a").history
    assert lengths[lengths.index(33) - 1] == most
    with pytest.raises(RequestError, match="the session has 23 tokens, so that 77 more"):
        by_itself.sessions.append("a", [5] * 77)


@pytest.mark.parametrize("last_n", [0, 96, True, "9"])
def test_what_is_kept_leaves_room_for_a_turn(last_n: Any) -> None:
    sessions = Managed(ring=Ring(3, 100)).sessions
    with pytest.raises(RequestError, match="recompute_last_n must be an integer from 1 to 95"):
        sessions.open("a", recompute_last_n=last_n)
    sessions.open("a", recompute_last_n=95)


def test_blocks_come_back_though_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    really_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await really_sleep(0)

    async def run() -> None:
        managed = Managed()
        engine = AsyncEngine(managed.engine)
        monkeypatch.setattr("quire.engine.async_engine.asyncio.sleep", sleep)
        engine.start()
        await engine.call(partial(engine.engine.sessions.open, "a", "", ""))
        await engine.append_to_session("a", [5] * 9)
        async for _ in engine.generate_turn("turn", "a", ONE_TOKEN):
            pass
        assert managed.num_held == 3
        managed.now += TIMEOUT
        for _ in range(10_000):
            if not managed.num_held:
                break
            await really_sleep(0.001)
        assert len(managed.engine.scheduler.sessions) == 0
        await engine.stop()

    asyncio.run(run())
    assert TIMEOUT / 10 in pauses


def test_a_request_that_is_refused_for_its_id_ends_nobody_s_turn() -> None:
    managed = Managed()
    managed.sessions.open("a")
    managed.sessions.append("a", [5] * 9)
    managed.engine.add_turn("turn", "a", ONE_TOKEN)
    with pytest.raises(RequestError, match="already"):
        managed.engine.add_request("turn", [5], ONE_TOKEN)
    managed.now += TIMEOUT
    assert managed.sessions.num_open == 1
