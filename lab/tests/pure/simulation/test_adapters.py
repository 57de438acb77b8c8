"""Recordings with adapters: written down by names that say nothing, simulated with few slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.core.protocol import Roster, Step
from quire.engine.traces.request import TraceRequest
from quire.engine.traces.writer import TraceWriter
from quire.engine.work import Work
from quire_lab.simulation.recorder import KeptResults
from quire_lab.simulation.simulator import Simulator
from quire_lab.workload import Trace
from support.limits import make_limits

WORKLOAD = [
    TraceRequest(0.01 * number, 12, 6 + number % 5, adapter=[None, "a", "b", "c"][number % 4])
    for number in range(24)
]


class Costs:
    def seconds(self, work: Work) -> float:
        return 0.01 + 1e-4 * work.prefill_tokens

    def recovery_costs(self, block_size: int) -> None: ...


def test_no_step_has_more_adapters_than_slots_and_skipping_ahead_changes_nothing() -> None:
    limits = make_limits(200, 64, enable_lora=True, max_loras=2)
    most, roster = [], Roster()

    def note(now: float, step: Step) -> None:
        adapters = {whose.request.adapter for whose in roster.follow(step)}
        most.append(len(adapters - {None}))

    costs: Any = Costs()
    kept = KeptResults(records=None)
    simulator = Simulator(limits, costs, kept, skip_ahead=False, on_step=note)
    result = simulator.run(WORKLOAD)
    assert max(most) == 2 and result.num_finished == len(WORKLOAD)
    ahead = Simulator(limits, costs, kept).run(WORKLOAD)
    assert ahead == result


def test_a_recording_tells_which_adapters_are_equal_and_nothing_else(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace", 16)
    for one in WORKLOAD:
        writer.end(writer.begin(one.arrival), one)
    writer.close()
    read = [one.adapter for one in Trace.open(tmp_path / "trace")]
    names = dict(zip((one.adapter for one in WORKLOAD), read, strict=True))
    assert [names[one.adapter] for one in WORKLOAD] == read
    assert names[None] is None and len({*names.values()}) == 4 and "a" not in names.values()
