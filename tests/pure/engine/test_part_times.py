"""Where a step's time goes is known while somebody asks, and costs nothing else."""

from __future__ import annotations

import pytest

from quire.core.protocol import Parts
from quire.engine import part_times
from quire.engine.part_times import PartTimes


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
    times = PartTimes(parts)
    step(parts)
    assert not parts.listeners and times.of_late() is None
    for _ in range(3):
        step(parts)
    told = times.of_late()
    assert told is not None and told.steps == 3
    assert told.forward > told.plan > 0 and told.rest > 0 and told.moves == told.draft == 0


def test_a_profile_and_the_state_do_not_disturb_each_other() -> None:
    parts, noted = Parts(), list[str]()
    times = PartTimes(parts)
    times.of_late()
    parts.listen("profile", lambda name, begin, end: noted.append(name))
    step(parts)
    parts.ignore("profile")
    step(parts)
    told = times.of_late()
    assert told is not None and told.steps == 2
    assert noted == ["plan", "forward", "somebody else's", "step"]


def test_nothing_is_timed_once_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_times, "_LINGER", 0.0)
    parts = Parts()
    times = PartTimes(parts)
    times.of_late()
    step(parts)
    assert not parts.listeners
    assert times.of_late() is None, "what was long ago is not told"
