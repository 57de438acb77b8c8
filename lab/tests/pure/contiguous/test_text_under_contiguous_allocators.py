"""The text of a request is the same in reserved regions as in blocks anywhere."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from lives.life import Run

from quire_lab.contiguous.allocator import ContiguousAllocator, Reservation
from support.contiguous_invariants import check_contiguous
from support.contiguous_lives import life_in_regions, regions
from support.slow import first_is_quick

LIVES = 240


class ContiguousRun(Run):
    def check(self) -> None:
        super().check()
        assert isinstance(self.scheduler.allocator, ContiguousAllocator)
        check_contiguous(self.scheduler.allocator)


@pytest.mark.parametrize("reservation", first_is_quick(Reservation))
def test_text_does_not_depend_on_how_regions_are_reserved(reservation: Reservation) -> None:
    happened: Counter[str] = Counter()
    for number in range(LIVES):
        happened += ContiguousRun(life_in_regions(number), partial(regions, reservation)).go()
    assert min(happened["admit"], happened["wait"], happened["ahead"]) > LIVES // 2
    preempted = [happened[what] for what in ("swap", "recompute", "resume")]
    if reservation is Reservation.POW2:
        assert min(preempted) > 5, "the pools were too roomy to test anything"
    else:  # whoever is admitted has all that it will need
        assert preempted == [0, 0, 0]
