"""With sliding windows and attention sinks, what is given back is never read.

And the text is what it should be.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from quire.core.memory import BlockMove, LayeredAllocator, MoveKind, PagedAllocator, Window
from quire.core.protocol import (
    PreemptionMode,
    RecoveryCosts,
    Request,
    SamplingParams,
    SchedulingPolicy,
)
from quire.core.scheduling import BatchLimits, Recovery, Scheduler
from support import scheduler_runs
from support.fake_model import FakeExecutor, FakeLayer, Sight
from support.kv_groups import make_kv_groups, random_windows
from support.scheduler_runs import SchedulerRun
from support.slow import first_is_quick, random_runs

RUNS = random_runs(600)
BATCHES = 2
HOST_BLOCKS = 400


@pytest.mark.parametrize("batch", first_is_quick(range(BATCHES)))
def test_text_does_not_depend_on_what_is_given_back(batch: int) -> None:
    decisions: Counter[str] = Counter()
    failed_moves = 0
    for seed in range(batch * RUNS // BATCHES, (batch + 1) * RUNS // BATCHES):
        windows = random_windows(random.Random(seed))
        run = SchedulerRun(
            seed,
            lambda *sizes, windows=windows, seed=seed: make_kv_groups(windows, seed, *sizes),
            windows,
        )
        run.run()
        decisions += run.decisions
        failed_moves += run.failed_moves
    rare = {what: decisions[what] for what in ("swap", "recompute", "resume", "wait")}
    assert min(rare.values()) >= 5, f"too roomy to test anything: {rare}"
    assert failed_moves > 0


def similar_request(rng: random.Random, number: int, policy: SchedulingPolicy) -> Request:
    """One whose beginning others have too."""
    prompt = [7, 8, 9, 10] * rng.randint(2, 7)
    prompt += [rng.randrange(50) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    params = SamplingParams(max_tokens=rng.randint(1, 20))
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=tuple(prompt),
        params=params,
        max_tokens=params.max_tokens or 1,
        seed=rng.randrange(3),
        arrival=float(number),
        eos_token_ids=frozenset([0]),
    )


class ForgetfulExecutor(FakeExecutor):
    """Half of what comes back from the host to windowed layers does not."""

    rng: random.Random

    def move(self, moves: Sequence[BlockMove]) -> list[BlockMove]:
        failed = []
        for move in moves:
            fails = move.kind is MoveKind.SWAP_IN and move.kv_group == 1 and self.rng.random() < 0.5
            self.layers[move.kv_group].move(move, fails)
            if fails:
                failed.append(move)
        return failed


@pytest.mark.parametrize("seed", range(40))
def test_nobody_reads_what_was_computed_from_lost_blocks(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_runs, "random_request", similar_request)
    window = random.Random(seed).choice([1, 2, 3, 4, 5, 8])
    sights = (Sight(), Sight(window))
    run = SchedulerRun(seed, lambda *sizes: make_kv_groups(sights, seed, *sizes), sights)
    size = random.Random(seed).choice([2, 4])
    blocks = random.Random(seed).randint(36, 70) // size
    budget = random.Random(seed + 1).choice([8, 12, 16, 24])
    full = PagedAllocator(blocks, size, HOST_BLOCKS)
    windowed = PagedAllocator(blocks, size, HOST_BLOCKS, Window(window, budget, 0))
    allocator = LayeredAllocator(size, [full, windowed])
    recovery = Recovery(PreemptionMode.SWAP, RecoveryCosts(0, 1))
    run.max_queue_time = None
    run.scheduler = Scheduler(allocator, BatchLimits(8, budget), recovery=recovery)
    run.executor = executor = ForgetfulExecutor(blocks, size)
    executor.rng = run.rng
    executor.layers = [FakeLayer(blocks, size, HOST_BLOCKS, sight) for sight in sights]
    run.run()
