"""``shortest-wait``: where a prompt is computed first, by each replica's own step times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from quire.engine.traces.request import TraceRequest
from quire_lab.simulation import Work
from quire_lab.simulation.fleet import FleetSetup, ReplicaKind
from quire_lab.simulation.fleet.flight import Flight
from quire_lab.simulation.fleet.replica import SimulatedReplica
from quire_lab.simulation.fleet.routing import ShortestWait
from quire_lab.simulation.result import RequestRecord
from support.fleets import UnevenCosts, served, small


class Noted(ShortestWait):
    """What is told for the first requests; from there on, what the router would have chosen."""

    def __init__(self, told: Sequence[int] = ()) -> None:
        super().__init__()
        self.told = told
        self.chosen: list[int] = []

    def choose(self, flight: Flight, replicas: Sequence[SimulatedReplica]) -> SimulatedReplica:
        best = super().choose(flight, replicas)
        if flight.number < len(self.told):
            self.done(flight, best)
            best = replicas[self.told[flight.number]]
            self._sent[best.name][flight.number] = flight.trace.prompt_tokens
        self.chosen.append(best.slot)
        return best


class DecodesMatter(UnevenCosts):
    def __init__(self, slowness: float, per_seq: float, per_context: float) -> None:
        super().__init__(slowness)
        self.per_seq, self.per_context = per_seq, per_context

    def seconds(self, work: Work) -> float:
        decoding = self.per_seq * work.decode_seqs + self.per_context * work.decode_context
        return self.slowness * (0.001 + 2e-4 * work.prefill_tokens + decoding)


def first_token(setup: FleetSetup, workload: list[TraceRequest], slots: Sequence[int]) -> float:
    """Of the last request, if each goes where it is told."""
    records: list[RequestRecord] = []
    router = Noted(slots)
    served(setup, workload, make_router=lambda: router, on_record=records.append)
    (last,) = (one for one in records if int(one.request_id) == len(workload) - 1)
    assert last.metrics is not None and last.metrics.ttft is not None
    return last.metrics.ttft


def regret(setup: FleetSetup, workload: list[TraceRequest], slots: Sequence[int]) -> float:
    """How much later the last prompt is done than where it would have been first. slots: of the
    others."""
    router = Noted(slots)
    served(setup, workload, make_router=lambda: router)
    ways = [first_token(setup, workload, [*slots, slot]) for slot in range(len(setup.kinds))]
    return ways[router.chosen[-1]] / min(ways) - 1


@pytest.mark.parametrize("seed", [0, 3])
def test_a_prompt_goes_where_it_is_computed_first(seed: int) -> None:
    draw = Random(seed)
    kinds = tuple(ReplicaKind(small(slowness)) for slowness in (2.7, 1.0, 1.6))
    workload = [TraceRequest(0.0, draw.choice([2, 5, 12, 30, 80]), 1) for _ in range(7)]
    setup = FleetSetup(kinds, "shortest-wait")
    router = Noted()
    served(setup, workload, make_router=lambda: router)
    for last in range(7):
        assert regret(setup, workload[: last + 1], router.chosen[:last]) < 0.05


@pytest.mark.parametrize(("per_seq", "per_context"), [(4e-3, 0.0), (0.0, 4e-5)])
@pytest.mark.parametrize("prompt", [5, 40])
def test_who_decodes_takes_longer_for_a_prompt(
    per_seq: float, per_context: float, prompt: int
) -> None:
    kinds = tuple(
        ReplicaKind(replace(small(each), costs=DecodesMatter(each, per_seq, per_context)))
        for each in (1.0, 1.4)
    )
    workload = [
        TraceRequest(0.0, 1, 1),
        TraceRequest(0.9, 20, 90),  # so that it runs when they report, after a second
        TraceRequest(1.001, prompt, 1),
    ]
    assert regret(FleetSetup(kinds, "shortest-wait"), workload, [1, 0]) == 0.0


def test_who_has_a_line_takes_longer_too() -> None:
    kinds = tuple(ReplicaKind(small(each, max_num_seqs=1)) for each in (1.0, 4.0))
    workload = [
        TraceRequest(0.0, 1, 1),
        *[TraceRequest(0.9, 10, 90)] * 3,
        TraceRequest(1.001, 10, 1),
    ]
    assert regret(FleetSetup(kinds, "shortest-wait"), workload, [1, 0, 0, 0]) == 0.0
