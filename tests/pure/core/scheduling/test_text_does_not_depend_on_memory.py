"""The same requests give the same text in any pool, under any budget, preempted or not."""

from __future__ import annotations

from collections import Counter

import pytest

from quire.core.memory import PagedAllocator
from quire.core.protocol import Request, SamplingParams
from quire.core.scheduling import BatchLimits, Scheduler
from support.fake_model import EOS, FakeExecutor, expected_outputs
from support.outcomes import take_in
from support.scheduler_runs import SchedulerRun
from support.slow import first_is_quick, random_runs

RUNS = random_runs(600)
BATCHES = 4


@pytest.mark.parametrize("batch", first_is_quick(range(BATCHES)))
def test_text_does_not_depend_on_memory(batch: int) -> None:
    decisions: Counter[str] = Counter()
    failed_moves = 0
    for seed in range(batch * RUNS // BATCHES, (batch + 1) * RUNS // BATCHES):
        run = SchedulerRun(seed)
        run.run()
        decisions += run.decisions
        failed_moves += run.failed_moves
    rare = {what: decisions[what] for what in ("swap", "recompute", "resume", "wait")}
    assert min(rare.values()) >= RUNS // BATCHES // 50, f"too roomy to test anything: {rare}"
    assert failed_moves > 0


def test_end_of_sequence_ends_a_branch() -> None:
    executor = FakeExecutor(64, 4)
    scheduler = Scheduler(PagedAllocator(64, 4), BatchLimits(8, 64))
    for number in range(40):
        params = SamplingParams(n=2, max_tokens=100, temperature=1.0)
        prompt = (number, 3, 5)
        request = Request("r", prompt, params, 100, seed=number, eos_token_ids=frozenset([EOS]))
        scheduler.add(request)
        outputs: list[list[int]] = [[], []]
        while scheduler.has_work:
            step = scheduler.schedule(0.0)
            for progress in take_in(scheduler, step, executor.execute(step), 0.0):
                outputs[progress.branch].append(progress.sample.token_id)
        assert outputs == expected_outputs(request)
