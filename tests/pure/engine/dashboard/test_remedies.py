"""A setting that is named for somebody who waits is enough, and no other is named."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from lives.life import Run
from lives.script import Life, draw

from quire.core.memory import PagedAllocator
from quire.core.protocol import Adapter, Request, Step
from quire.core.scheduling import Scheduler
from quire.engine.dashboard import PoolBytes, Reasons, Row, one_row, rows
from quire.engine.stats import DecisionLog
from quire.settings import parse_bytes
from quire.text.params import SamplingParams
from support.schedulers import make_scheduler
from support.slow import random_runs

SIZE = 4
ROOMY = {"num_blocks": 64, "max_num_seqs": 8, "max_num_batched_tokens": 256, "max_adapters": 4}
NAMES = {
    "--kv-cache-memory-bytes": "num_blocks",
    "--max-num-seqs": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--max-loras": "max_adapters",
}


def request(number: int, prompt: int = 15, *, adapters: bool = False) -> Request:
    tokens = tuple(range(100 * number, 100 * number + prompt))
    adapter = Adapter(b"%d" % number, f"a{number}") if adapters else None
    return Request(f"{number}", tokens, SamplingParams(max_tokens=9), 9, 1, adapter=adapter)


def begun(requests: list[Request], num_blocks: int, **limits: Any) -> tuple[Scheduler, list[Row]]:
    """After one step is planned: who waits."""
    scheduler = make_scheduler(PagedAllocator(num_blocks, SIZE), **limits)
    for one in requests:
        scheduler.add(one)
    log = DecisionLog()
    log.decided(scheduler.schedule(0.0))
    found = rows(scheduler, 0.0, Reasons(log.waiting, lambda _: 1.0), 100)
    return scheduler, [*found.preempted, *found.waiting]


def settings_in(remedy: str) -> dict[str, int]:
    parts = [
        re.fullmatch(r"(--[\w-]+): (?:room for )?([\d,]+).*", one) for one in remedy.split("; ")
    ]
    return {NAMES[found[1]]: int(found[2].replace(",", "")) for found in parts if found}


@pytest.mark.parametrize(
    "tight",
    [
        {"num_blocks": 10},
        {"max_num_seqs": 2},
        {"max_num_batched_tokens": 20},
        {"num_blocks": 10, "max_num_seqs": 2},
        {"max_adapters": 1},
    ],
    ids=str,
)
def test_with_the_value_that_is_named_it_would_run(tight: dict[str, int]) -> None:
    requests = [request(number, adapters="max_adapters" in tight) for number in range(4)]
    scheduler, waiting = begun(requests, **{**ROOMY, **tight})
    assert waiting and {row.status for row in waiting} == {"waiting"}
    for row in waiting:
        assert row.wait is not None and row.wait.remedy is not None
        named = settings_in(row.wait.remedy)
        assert named and named.keys() <= tight.keys()
        assert all(value > tight[name] for name, value in named.items())
        other, _ = begun(requests, **{**ROOMY, **tight, **named})
        assert row.id in {group.request.request_id for group in other.running}
    assert scheduler.waiting, "looking has changed nothing"


def test_the_value_for_the_first_in_the_queue_is_the_least() -> None:
    requests = [request(number) for number in range(4)]
    for tight in ({"num_blocks": 10}, {"max_num_seqs": 2}):
        _, (first, *_) = begun(requests, **{**ROOMY, **tight})
        assert first.wait is not None and first.wait.remedy is not None
        ((name, value),) = settings_in(first.wait.remedy).items()
        other, _ = begun(requests, **{**ROOMY, name: value - 1})
        assert first.id not in {group.request.request_id for group in other.running}


def test_it_is_told_in_bytes_as_the_flag_takes_them() -> None:
    requests = [request(number) for number in range(4)]
    limits = {**ROOMY, "num_blocks": 10}
    scheduler, (first, *_) = begun(requests, **limits)
    for total, told in ((6 << 20, "9 MiB instead of 6"), (5 << 31, "14 GiB instead of 10")):
        pool = PoolBytes(total, total // 10)
        row = rows(scheduler, 0.0, Reasons({}, lambda _: 1.0, pool=pool), 1).waiting[0]
        assert row.id == first.id and row.wait is not None
        assert row.wait.remedy == f"--kv-cache-memory-bytes: {told}"
        wanted = parse_bytes(told.partition(" instead")[0]) // pool.block
        other, _ = begun(requests, **{**limits, "num_blocks": wanted})
        assert first.id in {group.request.request_id for group in other.running}


class Asked(Run):
    """Random lives in which somebody asks after each step why others wait."""

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.log = DecisionLog()
        self.named: Counter[str] = Counter()

    def _planned(self, step: Step) -> None:
        super()._planned(step)
        self.log.decided(step)

    def check(self) -> None:
        super().check()
        found = rows(self.scheduler, 0.0, Reasons(self.log.waiting, lambda _: 1.0), 100)
        for row in (*found.preempted, *found.waiting):
            assert row.wait is not None
            wait = row.wait
            short = wait.needed is not None and wait.free is not None and wait.needed > wait.free
            if wait.ahead == 0 and short:
                assert wait.remedy is not None, wait.text
            self.named.update(settings_in(wait.remedy or ""))
        story = {group.request.request_id: group for group in self.scheduler.waiting}
        for row in (*found.preempted, *found.waiting):
            again = Reasons(self.log.waiting, lambda _: 1.0)
            assert one_row(self.scheduler, story[row.id], 0.0, again) == row


def test_over_random_lives_who_lacks_something_is_given_a_setting() -> None:
    named: Counter[str] = Counter()
    for number in range(random_runs(80) // 8):
        run = Asked(draw(number))
        run.go()
        named += run.named
    assert {"num_blocks", "max_num_seqs"} <= named.keys()
