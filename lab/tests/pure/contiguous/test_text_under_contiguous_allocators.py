"""The text of a request is the same in reserved regions as in blocks anywhere."""

from __future__ import annotations

from collections import Counter

import pytest

from quire_lab.contiguous.allocator import ContiguousAllocator, Reservation
from support.contiguous_invariants import check_contiguous
from support.scheduler_runs import SchedulerRun
from support.slow import first_is_quick

RUNS = 240
MODEL_LENGTH = 90  # more than any request of a run takes


class ContiguousRun(SchedulerRun):
    def __init__(self, seed: int, reservation: Reservation) -> None:
        super().__init__(
            seed,
            lambda blocks, size, host, _: ContiguousAllocator(
                blocks, size, reservation, MODEL_LENGTH, host
            ),
        )

    def check(self) -> None:
        assert isinstance(self.allocator, ContiguousAllocator)
        check_contiguous(self.allocator)


@pytest.mark.parametrize("reservation", first_is_quick(Reservation))
def test_text_does_not_depend_on_how_regions_are_reserved(reservation: Reservation) -> None:
    decisions: Counter[str] = Counter()
    for seed in range(RUNS):
        run = ContiguousRun(seed, reservation)
        run.run()
        decisions += run.decisions
    assert min(decisions["admit"], decisions["wait"]) > RUNS // 2
    preempted = [decisions[what] for what in ("swap", "recompute", "resume")]
    if reservation is Reservation.POW2:
        assert min(preempted) > 5, "the pools were too roomy to test anything"
    else:  # whoever is admitted has all that it will need
        assert preempted == [0, 0, 0]
