"""An engine calls the hooks that its capabilities have, each at its moment, and no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.blocks.events import EventPublisher
from quire.blocks.store import Tiers
from quire.blocks.transfer import BlockServer
from quire.capabilities.adapters.served import Adapters
from quire.capabilities.sessions import SessionManager
from quire.capabilities.speculation import Speculation
from quire.core.errors import EngineError, QuireError, RequestError
from quire.core.memory import PagedAllocator
from quire.core.protocol import Outcome, Request, Step
from quire.core.scheduling import BatchLimits, Capability, Hooks, Scheduler, Session
from quire.engine.capabilities import Capabilities
from quire.engine.engine import Engine
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.text.params import SamplingParams
from quire.text.tokenizer import load_tokenizer
from support.fake_model import FakeExecutor

TOKENIZER = load_tokenizer(Path(quire.__file__).parent / "models/demo")
ALL = {name for name in vars(Capability) if not name.startswith("_")}
TWO = SamplingParams(max_tokens=2, ignore_eos=True)


class Diary(Capability):
    """Has all hooks but ``waits``, and writes down what it is called for."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.refuses: set[str] = set()
        self.unready: str | None = None

    def engine_begins(self, scheduler: Scheduler, hooks: Hooks) -> None:
        self._note("begin")

    def request_begins(self, request: Request) -> None:
        self._note(f"begins {request.request_id}")
        if request.request_id in self.refuses:
            raise RequestError("not this one", "request_id")

    def request_ends(self, request: Request) -> None:
        self._note(f"ends {request.request_id}")

    def session_begins(self, session: Session) -> None:
        self._note(f"opens {session.session_id}")
        if session.session_id in self.refuses:
            raise RequestError("not this one", "session_id")

    def session_ends(self, session: Session) -> None:
        self._note(f"closes {session.session_id}")

    def prepare(self, scheduler: Scheduler) -> tuple[Callable[[Request], bool], QuireError] | None:
        self._note("prepare")
        if self.unready is None:
            return None
        return lambda request: request.request_id == self.unready, EngineError("it is not there")

    def recall(self, scheduler: Scheduler) -> None:
        self._note("recall")
        scheduler.sit_out([])

    def propose(self, scheduler: Scheduler) -> None:
        self._note("propose")

    def rest(self) -> None:
        self._note("rest")

    def observe(self, step: Step, outcomes: Mapping[int, Outcome], seconds: float) -> None:
        self._note(f"observe {len(step.chunks)}")

    def contents_change(self, scheduler: Scheduler) -> None:
        self._note("contents")

    def close(self) -> None:
        self._note("close")

    def _note(self, what: str) -> None:
        self.seen.append(what)


def an_engine() -> tuple[Engine, Diary]:
    scheduler = Scheduler(PagedAllocator(16, 4), BatchLimits(4, 32))
    inputs = InputProcessor(TOKENIZER, ModelOutputs(4096), max_model_len=60, seed=0)
    diary: Any = Diary()
    capabilities = Capabilities(SessionManager(), adapters=diary)
    engine = Engine(scheduler, FakeExecutor(16, 4), inputs, capabilities=capabilities)
    assert diary.seen == ["begin"]
    diary.seen.clear()
    return engine, diary


def test_each_hook_is_called_at_its_moment() -> None:
    engine, diary = an_engine()
    engine.add_request("r", [1, 2, 3], TWO)
    while engine.has_work:
        engine.step()
    step = ["prepare", "propose", "observe 1"]
    assert diary.seen == ["begins r", *step, "contents", *step, "ends r", "contents"]
    diary.seen.clear()
    engine.step()
    assert diary.seen == ["prepare", "propose", "rest", "observe 0", "contents"]
    diary.seen.clear()
    engine.audit()
    engine.reset_prefix_cache()
    assert diary.seen == ["contents", "contents"]
    diary.seen.clear()
    engine.close()
    assert diary.seen == ["close"]


def test_who_sits_steps_out_is_recalled_before_each_and_else_nobody_is() -> None:
    engine, diary = an_engine()
    engine.add_request("r", [1, 2, 3], TWO)
    engine.step()
    engine.scheduler.sit_out(["r"])
    diary.seen.clear()
    while engine.has_work:
        engine.step()
    assert diary.seen == ["prepare", "recall", "propose", "observe 1", "ends r", "contents"]


def test_what_has_begun_ends_once() -> None:
    engine, diary = an_engine()
    engine.add_request("r", [1, 2, 3], TWO)
    with pytest.raises(RequestError, match="already"):
        engine.add_request("r", [1, 2, 3], TWO)
    engine.abort("r")
    diary.refuses = {"never"}
    with pytest.raises(RequestError, match="not this one"):
        engine.add_request("never", [1, 2, 3], TWO)
    assert diary.seen == ["begins r", "begins r", "ends r", "ends r", "begins never"]
    assert not engine.has_work


def test_whose_need_cannot_be_met_ends_with_the_error() -> None:
    engine, diary = an_engine()
    for name in "ab":
        engine.add_request(name, [1, 2, 3], TWO)
    diary.unready = "a"
    told = engine.step()
    assert [(one.request_id, str(one.failure or "")) for one in told] == [
        ("a", "it is not there"), ("b", ""),
    ]  # fmt: skip
    assert diary.seen[:4] == ["begins a", "begins b", "prepare", "ends a"]


def test_a_session_that_is_refused_is_not_open() -> None:
    engine, diary = an_engine()
    diary.refuses = {"never"}
    with pytest.raises(RequestError, match="not this one"):
        engine.sessions.open("never")
    assert engine.sessions.num_open == 0 and not engine.scheduler.sessions
    engine.sessions.open("s")
    engine.sessions.end("s")
    assert diary.seen == ["opens never", "opens s", "closes s"]


@pytest.mark.parametrize(
    ("kind", "hooks"),
    [
        (Adapters, {"engine_begins", "request_begins", "request_ends", "session_begins",
                    "session_ends", "prepare", "rest"}),
        (SessionManager, {"engine_begins"}),
        (Speculation, {"propose", "waits", "observe"}),
        (EventPublisher, {"engine_begins", "contents_change", "close"}),
        (BlockServer, {"close"}),
        (Tiers, {"close"}),
        (Diary, ALL - {"waits"}),
    ],
)  # fmt: skip
def test_a_hook_is_that_of_those_who_override_it(kind: type[Capability], hooks: set[str]) -> None:
    there = vars(Hooks([None, object.__new__(kind)]))
    assert {name for name in there if there[name]} == hooks


def test_every_method_of_a_capability_is_a_hook() -> None:
    assert vars(Hooks()).keys() == ALL


def test_what_a_capability_inherits_is_called_too() -> None:
    class Calendar(Diary):
        pass

    assert len(Hooks([Calendar()]).close) == 1


def test_what_no_capability_needs_costs_no_call() -> None:
    there = vars(Hooks(Capabilities(SessionManager())))
    assert {name for name in there if there[name]} == {"engine_begins"}
    assert not any(vars(Hooks([Capability()])).values())
