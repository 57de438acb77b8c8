"""Lives of an engine in which everything happens that can (``tests/lives``)."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from lives.__main__ import failure_of, search, shortest
from lives.life import Run
from lives.script import Abort, Ask, Fault, Life, Open, Settings, Turn, draw

from support import ran
from support.fake_model import Sight

LIVES = 800
BATCHES = 4
ON_DEMAND = int(os.environ.get("QUIRE_LIVES", "0"))  # more, on all cores
OFTEN = {  # in a thousand lives, at least
    "ahead": 500, "abort": 100, "beams": 50, "charges": 1000, "copy": 100, "cuts": 100,
    "drafts": 500, "EngineError": 50, "events": 500, "expire": 50, "fetch": 10, "forks": 100,
    "recompute": 30, "recompute idle": 10, "refuse": 50, "resume": 10, "store": 500, "swap": 10,
    "states copy": 1000, "states found": 100, "states missed": 100, "states swap_in": 2,
    "states store": 200, "states fetch": 10,
    "swap idle": 5, "swap_in": 30, "turns": 100,
}  # fmt: skip


@pytest.mark.timeout(0)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_life_is_well(batch: int) -> None:
    lives = max(LIVES, ON_DEMAND) // BATCHES
    happened, wrong = search(batch * lives, lives, os.cpu_count() or 1 if ON_DEMAND else 1)
    assert wrong is None, f"make lives ARGS={wrong} tells this life again"
    rare = {
        what: happened[what]
        for what, times in OFTEN.items()
        if happened[what] < times * lives / 4000 and times * lives > 1000  # rarer ones come in few
    }
    assert not rare, f"too roomy to test anything: {rare}"


WERE_NOT_WELL = [
    # Beams that compute again one after the other, under a window: the first kept what it could
    # not see, so that the next could never grow, and both began anew for ever.
    Life(
        101199,
        Settings(block_size=2, blocks=19, windows=(Sight(), Sight(1)), share=0.4, step_tokens=8),
        (
            Ask(0, "one", (1,), 16),
            Ask(0, "beams", (49, 0, 44), 16, beams=2),
            Open(4, "session"),
            Turn(4, "session", (28, 17), 8),
        ),
    ),
    # A request that was aborted in mid-step left scores that nobody computes, if the step failed.
    Life(
        2379,
        Settings(block_size=2, step_tokens=4),
        (Ask(0, "scored", (1,) * 14, scored=True), Fault(0), Abort(0, 0, mid=True)),
    ),
    # Turns that ended with right drafts that a draft model's states had yet to see: aborted, also
    # where a window moved on with the next one, and by themselves, with a next one that was aborted
    # before it began.
    draw(54002099),
    draw(5490),
    draw(55052087),
    draw(58010330),
    # A turn that began, after a cut, where the last one had ended, in blocks of others.
    draw(56024260),
    # Two of equal beginnings in one step: what the first leaves is displaced by what the second
    # leaves deeper, which then leaves it in the same slot again.
    draw(62000887),
]


@pytest.mark.parametrize("life", WERE_NOT_WELL, ids=lambda life: life.number)
def test_lives_that_were_not_well_are(life: Life) -> None:
    Run(life).go()


def test_the_same_life_is_lived_the_same_way() -> None:
    for number in range(40):
        steps: list[list[object]] = []
        for _ in range(2):
            run, planned = Run(draw(number)), list[object]()
            check = run.device.planned
            run.device.planned = lambda step, check=check, planned=planned: (
                planned.append((step.moves, step.chunks, step.decisions)),
                check(step),
            )  # type: ignore[assignment,misc]
            happened: Counter[str] = run.go()
            steps.append([*planned, happened])
        assert steps[0] == steps[1]


def test_a_life_that_fails_is_told_by_what_it_fails_of(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Ask.request
    two = next(
        life
        for life in map(draw, range(100))
        if sum(isinstance(event, Ask) for event in life.events) > 2
    )
    wanted = [event for event in two.events if isinstance(event, Ask)][1]

    def refuses(ask: Ask) -> object:
        assert ask.name != wanted.name, "a planted bug"
        return request(ask)

    monkeypatch.setattr(Ask, "request", refuses)
    short = shortest(two)
    assert [event.name for event in short.events if isinstance(event, Ask)] == [wanted.name]
    assert len(short.events) == 1 and failure_of(short) is not None
    monkeypatch.setattr(Ask, "request", request)
    assert failure_of(two) is None


def test_what_has_run_adds_up(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    for first, count in ((0, 5), (3, 4), (100, 2)):
        _, wrong = search(first, count, 1, ledger)
        assert wrong is None
    ran.note(ledger, "cases", 7, 50, 1800.0)
    ran.note(ledger, "cases", 57, 50, 1800.0)
    ran.note(ledger, "cases", 0, 0, 1.0)
    batches = ran.read([ledger])
    assert [(one.what, one.first, one.count) for one in batches] == [
        ("lives", 0, 5), ("lives", 3, 4), ("lives", 100, 2), ("cases", 7, 50), ("cases", 57, 50),
    ]  # fmt: skip
    assert all(one.seconds > 0 for one in batches)
    cases, lives = ran.told(batches).splitlines()
    assert cases == "cases: 100 seeds, 1.000 hours of a processor, commits: 1"
    assert lives.startswith("lives: 9 seeds, 0.00")


def test_a_batch_says_where_it_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("lives.__main__.live", lambda life: 1 // (life.number - 3) and Counter())
    assert search(0, 10, 1, tmp_path / "ledger")[1] == 3
    (batch,) = ran.read([tmp_path / "ledger"])
    assert (batch.first, batch.count) == (0, 4)


def test_a_device_that_takes_steps_out_of_order_is_found_out() -> None:
    """Blocks are freed, and given to others, while a step that writes them is under way."""
    found = 0
    for number in range(100):
        run = Run(draw(number))
        run.device.late_writes = run.life.settings.ahead
        try:
            run.go()
        except AssertionError:
            found += 1
    assert found > 5
