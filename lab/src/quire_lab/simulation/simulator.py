"""One engine on a virtual clock, and a workload that it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from quire.core.limits import EngineLimits
from quire.core.protocol import Step
from quire.engine.traces.request import TraceRequest
from quire_lab.simulation.arrivals import Arrivals, OpenLoop
from quire_lab.simulation.cost_model import CostModel
from quire_lab.simulation.drafting import SimulatedDrafting
from quire_lab.simulation.engine import Pause, SimulatedEngine
from quire_lab.simulation.recorder import KeptResults, SimulationRecorder
from quire_lab.simulation.result import RequestRecord, SimulationResult
from quire_lab.simulation.sampling import SimulatedModel


class Simulator:
    """One run of a workload, by an engine with these limits.

    seed, drafting: see ``SimulatedModel``. skip_ahead, on_step: see ``SimulatedEngine``.
    on_record: called with every request that has ended or was refused.
    """

    def __init__(
        self,
        limits: EngineLimits,
        cost_model: CostModel,
        kept: KeptResults = KeptResults(),  # noqa: B008  # frozen
        *,
        seed: int = 0,
        skip_ahead: bool = True,
        drafting: SimulatedDrafting | None = None,
        on_record: Callable[[RequestRecord], None] | None = None,
        on_step: Callable[[float, Step], None] | None = None,
    ) -> None:
        self.limits = limits
        self._recorder = SimulationRecorder(kept)
        self.engine = SimulatedEngine(
            limits,
            cost_model,
            SimulatedModel(seed, drafting),
            self._recorder,
            on_end=self._ended,
            skip_ahead=skip_ahead,
            on_step=on_step,
        )
        self._on_record = on_record
        self._arrivals: Arrivals = OpenLoop(())
        self._num_arrived = 0

    def run(self, workload: Iterable[TraceRequest]) -> SimulationResult:
        """Serve requests that come in order of arrival."""
        return self.serve(OpenLoop(workload))

    def serve(self, arrivals: Arrivals) -> SimulationResult:
        """Serve all that come, to the end. A simulator serves once."""
        self._arrivals, engine = arrivals, self.engine
        now = begin = arrivals.next_time or 0.0
        while True:
            self._arrive(now)
            for pause in engine.steps(now):
                now = self._arrive_until(pause)
            if engine.gave_up or arrivals.next_time is None:
                return self._recorder.result(self.limits, engine.stats, begin, now)
            now = max(now, arrivals.next_time)

    def _arrive(self, now: float) -> None:
        """Hand over the requests that have come."""
        arrivals = self._arrivals
        while (time := arrivals.next_time) is not None and time <= now:
            self.engine.take(self._num_arrived, arrivals.take(), time)
            self._num_arrived += 1

    def _arrive_until(self, pause: Pause) -> float:
        """Hand over the requests that come before the engine continues; returns when it does."""
        arrivals, engine = self._arrivals, self.engine
        while (time := arrivals.next_time) is not None and time <= pause[0]:
            self._arrive(time)
            pause = engine.due(pause)
        return pause[0]

    def _ended(self, record: RequestRecord, now: float) -> None:
        if self._on_record is not None:
            self._on_record(record)
        self._arrivals.ended(now)
