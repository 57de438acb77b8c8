"""What is told of an engine's steps: rates, and while somebody asks, where their time goes."""

from __future__ import annotations

import pytest

from quire.core.protocol import Parts
from quire.engine import stats
from quire.engine.events import Events, Watcher
from quire.engine.stats import PartTimes


def step(parts: Parts) -> None:
    with parts["step"]:
        with parts["plan"]:
            pass
        with parts["forward"]:
            sum(range(1000))
        with parts["somebody else's"]:
            pass


def test_steps_are_timed_from_the_first_question_on() -> None:
    parts = Parts()
    times = PartTimes(Events(parts))
    step(parts)
    assert parts.listener is None and times.of_late() is None
    for _ in range(3):
        step(parts)
    told = times.of_late()
    assert told is not None and told.steps == 3
    assert told.forward > told.plan > 0 and told.rest > 0 and told.moves == told.draft == 0


def test_a_profile_and_the_state_do_not_disturb_each_other() -> None:
    class Listener(Watcher):
        def part(self, name: str, begin: float, end: float) -> None:
            noted.append(name)

    parts, noted, listener = Parts(), list[str](), Listener()
    events = Events(parts)
    times = PartTimes(events)
    times.of_late()
    events.add(listener)
    step(parts)
    events.remove(listener)
    step(parts)
    told = times.of_late()
    assert told is not None and told.steps == 2
    assert noted == ["plan", "forward", "somebody else's", "step"]


def test_nothing_is_timed_once_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "_LINGER", 0.0)
    parts = Parts()
    times = PartTimes(Events(parts))
    times.of_late()
    step(parts)
    assert parts.listener is None
    assert times.of_late() is None, "what was long ago is not told"
