"""A recording of a small simulated engine whose memory is too small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quire.core.protocol import RecoveryCosts
from quire.engine.traces.request import TraceRequest
from quire_lab.recorded import Look, SimulationRecording
from quire_lab.recording import RecordingHeader, Writer
from quire_lab.simulation import OpenLoop, SimulationResult, Simulator, Work
from support.limits import make_limits

LIMITS = make_limits(40, 512, enable_prefix_caching=True, max_num_seqs=8)


class Costs:
    def seconds(self, work: Work) -> float:
        return 0.02

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        return RecoveryCosts(swap_per_block=1e-3, recompute_per_token=1.0)


def workload(n: int = 1, beam_search: bool = False) -> list[TraceRequest]:
    """Some give way; the last one can never run."""
    requests = [
        TraceRequest(0.02 * at, 40 + 3 * (at % 7), 20 + at % 30, n=n, beam_search=beam_search)
        for at in range(30)
    ]
    return [*requests, TraceRequest(5.0, 9000, 4)]


def simulated(
    path: Path,
    requests: Sequence[TraceRequest],
    model: str = "m",
    recording: type[SimulationRecording] = SimulationRecording,
) -> tuple[SimulationResult, SimulationRecording]:
    simulator = Simulator(LIMITS, Costs())
    with Writer(path, RecordingHeader("simulation", model, 0.0)) as writer:
        watching = recording(simulator.engine, Look(simulator.engine, model), writer)
        return simulator.serve(OpenLoop(requests)), watching
