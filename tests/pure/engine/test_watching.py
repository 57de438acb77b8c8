"""Who watches an engine harms nobody, and what a step's parts take is told only if it is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

import quire
from quire.core.errors import BusyError, EngineError, RequestError
from quire.core.memory import PagedAllocator
from quire.core.protocol import Decision, Request, Step
from quire.core.scheduling import BatchLimits, Scheduler
from quire.engine.engine import Engine
from quire.engine.events import RequestState, Taken, Watcher
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.engine.tracing import Profile
from quire.text.params import SamplingParams
from quire.text.tokenizer import load_tokenizer
from support.fake_model import FakeExecutor

TOKENIZER = load_tokenizer(Path(quire.__file__).parent / "models/demo")


def an_engine() -> Engine:
    scheduler = Scheduler(PagedAllocator(16, 4), BatchLimits(4, 32))
    inputs = InputProcessor(TOKENIZER, ModelOutputs(4096), max_model_len=60, seed=0)
    return Engine(scheduler, FakeExecutor(16, 4), inputs)


class Diary(Watcher):
    def __init__(self) -> None:
        self.told: list[tuple[str, str, tuple[str | None, ...]]] = []

    def began(self, request: Request) -> None:
        self.told.append(("began", request.request_id, ()))

    def ended(self, state: RequestState) -> None:
        self.told.append(("ended", state.request.request_id, (*state.finish_reasons,)))
        assert state.reason == (state.finish_reasons[0] or "abort")
        assert state.metrics.num_output_tokens == sum(map(len, state.outputs))


class Faulty(Diary):
    def ended(self, state: RequestState) -> None:
        super().ended(state)
        raise ValueError("a bug")


def test_watchers_are_told_and_a_faulty_one_no_more(caplog: pytest.LogCaptureFixture) -> None:
    engine, diary, faulty = an_engine(), Diary(), Faulty()
    for watcher in (faulty, diary):
        engine.events.add(watcher)
    for name in "ab":
        engine.add_request(name, [1, 2], SamplingParams(max_tokens=3))
    engine.step()
    engine.abort("b")
    while engine.has_work:
        engine.step()
    engine.events.remove(diary)
    engine.add_request("c", [1, 2], SamplingParams(max_tokens=3))
    assert diary.told == [
        ("began", "a", ()), ("began", "b", ()),
        ("ended", "b", (None,)), ("ended", "a", ("length",)),
    ]  # fmt: skip
    assert faulty.told == diary.told[:3] and len(caplog.records) == 1


class Everything(Watcher):
    """Notes the events of a life."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def began(self, request: Request) -> None:
        self.heard.append("began")

    def refused(self, decision: Decision, now: float) -> None:
        self.heard.append("refused")

    def planned(self, step: Step) -> None:
        self.heard.append("planned")

    def decided(self, step: Step) -> None:
        self.heard.append(f"decided {len(step.decisions)}")

    def took(self, taken: Taken) -> None:
        self.heard.append("failed" if taken.seconds is None else f"took {taken.num_tokens}")

    def rested(self) -> None:
        self.heard.append("rested")

    def ended(self, state: RequestState) -> None:
        self.heard.append(f"ended: {state.reason}, {state.error}")

    def close(self) -> None:
        self.heard.append("closed")


def test_all_that_an_engine_does_is_an_event() -> None:
    engine, everything = an_engine(), Everything()
    engine.events.add(everything)
    with pytest.raises(RequestError):
        engine.add_request("too long", [1] * 70, SamplingParams(max_tokens=1))
    assert everything.heard == [], "what is no request yet is none that is refused"
    engine.add_request("a", [1, 2], SamplingParams(max_tokens=2))
    while engine.has_work:
        engine.step()
    engine.add_request("b", [1, 2], SamplingParams(max_tokens=2))
    engine.end("b", EngineError("enough"))
    engine.add_request("c", [1, 2], SamplingParams(max_tokens=2))
    engine.close()
    assert everything.heard == [
        *("began", "planned", "decided 1", "took 1"),  # let in
        *("planned", "ended: length, None", "took 1", "rested"),
        *("began", "ended: error, EngineError", "began", "ended: error, EngineError", "closed"),
    ]


def test_an_event_that_nobody_hears_costs_no_call() -> None:
    engine = an_engine()
    engine.events.add(Watcher())
    events = engine.events
    assert not (events.planned or events.rested or events.part)
    assert engine.parts.listener is None and engine.parts["step"] is engine.parts["plan"]


def test_a_profile_has_what_lived_before_it_and_what_lives_on() -> None:
    engine = an_engine()
    engine.add_request("before", [1, 2], SamplingParams(max_tokens=8))
    engine.step()
    profile = Profile(engine.events, engine.clock())
    with pytest.raises(BusyError):
        Profile(engine.events, engine.clock())
    engine.add_request("after", [1, 2], SamplingParams(max_tokens=40))
    while engine.states()[0].request.request_id == "before":
        engine.step()
    engine.add_request("late", [1, 2], SamplingParams(max_tokens=3))
    profile.finish(engine.states())
    trace = profile.trace()
    engine.step()
    assert profile.trace() == trace, "nothing is noted after its end"
    bars = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == 3]
    names = [(bar["tid"], bar["name"]) for bar in bars]
    assert sorted(names) == sorted([
        (1, "decoding"), (1, "request before"),
        (2, "decoding"), (2, "prefill"), (2, "request after"), (2, "waiting"),
        (1, "request late"), (1, "waiting"),
    ])  # fmt: skip
    over = {bar["args"]["request"]: bar["args"]["over"] for bar in bars if "args" in bar}
    assert over == {"before": True, "after": False, "late": False}
    assert all(bar["ts"] >= 0 and bar["dur"] >= 0 for bar in bars)
