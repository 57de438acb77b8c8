"""Lives of the whole server in a deterministic world (``tests/world``)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from world.__main__ import shortest
from world.life import Life
from world.script import Ask, Fault, Script, make_script

HOURS = 24.0
LIVES = max(12, int(os.environ.get("QUIRE_WORLD_HOURS", "0")) // int(HOURS))  # more on demand
BATCHES = 4


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)  # of the hundreds of faults
    yield
    logging.disable(logging.NOTSET)


def transcript(script: Script) -> list[str]:
    life = Life(script)
    life.run()
    return life.transcript


@pytest.mark.timeout(0)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_nobody_is_hurt_who_should_not_be(batch: int) -> None:
    for seed in range(batch * LIVES // BATCHES, (batch + 1) * LIVES // BATCHES):
        try:
            transcript(make_script(seed, HOURS))
        except Exception as error:
            raise AssertionError(f"make world ARGS={seed} tells this life again") from error


def test_the_same_life_is_told_the_same_way() -> None:
    script = make_script(3, HOURS)
    assert transcript(script) == transcript(script)


def test_a_script_is_shortened_to_what_it_fails_of() -> None:
    script = make_script(5, HOURS)
    needed = {script.events[1], script.events[-2]}
    shorter = shortest(script, lambda fewer: needed <= set(fewer.events))
    assert set(shorter.events) == needed


def test_an_engine_that_dies_without_a_reason_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*arguments: object) -> None:
        raise RuntimeError("a planted bug")

    ask = Ask(10.0, (1, 2, 3), 5, seed=1, key="key-of-ann")
    script = replace(make_script(1, HOURS), events=(ask,))
    transcript(script)
    monkeypatch.setattr("quire.engine.engine.Engine._update", die)
    with pytest.raises(AssertionError, match="without a reason"):
        transcript(script)


def test_a_fault_that_strikes_is_told_to_who_asked() -> None:
    ask = Ask(10.0, (1, 2, 3), 5, seed=1, key="key-of-ann")
    script = replace(make_script(1, HOURS), events=(Fault(5.0, "step raises"), ask))
    assert any("/v1/completions: 500" in line for line in transcript(script))
