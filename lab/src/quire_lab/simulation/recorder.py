"""Notes what happens in a simulation, in memory that does not grow with the trace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from quire.core.limits import EngineLimits
from quire.core.memory import Usage
from quire.core.protocol import Decision, Verdict
from quire.core.scheduling.admission import SchedulerStats
from quire.engine.metrics import RequestMetrics
from quire.engine.traces.request import DraftCounts
from quire_lab.simulation.latencies import Distribution, Goals
from quire_lab.simulation.live import LiveRequest
from quire_lab.simulation.result import (
    Preemptions,
    PrefixCounts,
    RequestRecord,
    SimulationResult,
    TimedDecision,
)
from quire_lab.simulation.series import TimeSeries
from quire_lab.simulation.served import ServedCounter


@dataclass(frozen=True)
class KeptResults:
    """What a result counts and keeps.

    goals: what it counts requests against.
    records, decisions: how many of each it keeps whole; None is all.
    most_missed: the run ends early, and the result tells only of what was until then, as soon as
        more requests than these have missed the goals.
    """

    goals: Goals = Goals()  # noqa: RUF009  # frozen
    records: int | None = 0
    decisions: int | None = 0
    most_missed: int | None = None

    def gives_up(self, num_missed: int) -> bool:
        """Whether so many are too many."""
        return num_missed > (math.inf if self.most_missed is None else self.most_missed)


class SimulationRecorder:
    """Adds up a run."""

    def __init__(self, kept: KeptResults) -> None:
        self._kept = kept
        self._records: list[RequestRecord] = []
        self._decisions: list[TimedDecision] = []
        self._latest_wait: tuple[str, str] | None = None  # the request that waits, and why
        self._series = TimeSeries()
        self._num_steps = 0
        self._served = ServedCounter(kept.goals)
        self._drafts = self._draft_tokens = self._accepted_tokens = 0
        self._swaps = self._recomputes = self._swapped_blocks = 0
        self._saved_blocks = self._peak_blocks = 0
        self._itl, self._queueing = Distribution(), Distribution()

    @property
    def gives_up(self) -> bool:
        """Whether too many requests have missed the goals, or were refused."""
        return self._kept.gives_up(self._served.num_missed)

    def step(self, start: float, end: float, usage: Usage, running: int, waiting: int) -> None:
        self._num_steps += 1
        self._series.add(start, end, usage, running, waiting)

    def gaps(self, gaps: Mapping[float, int]) -> None:
        """Times between tokens that one step ended, and how often each occurred."""
        for gap in sorted(gaps) if len(gaps) > 1 else gaps:
            if gaps[gap]:
                self._itl.add(gap, gaps[gap])

    def decide(self, now: float, decision: Decision) -> None:
        """Keep a decision, unless it repeats that a request waits for the same reason."""
        if decision.what is Verdict.WAIT:
            wait = (decision.request_id, decision.why)
            if wait == self._latest_wait:
                return
            self._latest_wait = wait
        elif decision.what is not Verdict.REFUSE:
            self._latest_wait = None
        if self._kept.decisions is None or len(self._decisions) < self._kept.decisions:
            self._decisions.append(TimedDecision(now, decision))

    def refuse(self, request_id: str, arrival: float, why: str) -> RequestRecord:
        self.decide(arrival, Decision(Verdict.REFUSE, request_id, why))
        return self._keep(RequestRecord(request_id, None, None, refused=why))

    def finish(self, live: LiveRequest, now: float) -> RequestRecord:
        record = live.record(now)
        assert record.metrics is not None
        self._count(record.metrics)
        self._queueing.add((record.admitted or 0.0) - live.trace.arrival)
        self._swapped_blocks += live.group.memory.swapped_blocks
        return self._keep(record)

    def result(
        self, limits: EngineLimits, stats: SchedulerStats, begin: float, end: float
    ) -> SimulationResult:
        series = self._series.points()
        busy = sum(point.seconds for point in series)
        share = 1 / busy if busy else 0.0
        usage = Usage(
            *(
                round(sum(getattr(point, part) * point.seconds for point in series) * share)
                for part in Usage._fields
            )
        )
        running = sum(point.running * point.seconds for point in series) * share
        total = self._peak_blocks + self._saved_blocks
        return SimulationResult(
            block_size=limits.block_size,
            num_blocks=limits.num_blocks,
            seconds=end - begin,
            busy_seconds=busy,
            num_steps=self._num_steps,
            **self._served.figures(),
            num_missed_ttft=self._served.num_missed_ttft,
            num_missed_tpot=self._served.num_missed_tpot,
            num_decisions=dict(sorted(stats.decisions.items())),
            preemptions=Preemptions(self._swaps, self._recomputes, self._swapped_blocks),
            prefix_cache=PrefixCounts(
                stats.prefix_queries, stats.prefix_hits, stats.prefix_evicted, stats.prefix_tails
            ),
            drafts=DraftCounts(self._drafts, self._draft_tokens, self._accepted_tokens),
            itl=self._itl.summary(),
            queueing=self._queueing.summary(),
            mean_running=running,
            most_running=max((point.most_running for point in series), default=0),
            most_held=max((point.most_held for point in series), default=0),
            mean_usage=usage,
            saved_blocks_share=self._saved_blocks / total if total else 0.0,
            series=series,
            records=tuple(self._records),
            decisions=tuple(self._decisions),
        )

    def _count(self, metrics: RequestMetrics) -> None:
        self._drafts += metrics.num_drafts
        self._draft_tokens += metrics.num_draft_tokens
        self._accepted_tokens += metrics.num_accepted_tokens
        self._swaps += metrics.num_swaps
        self._recomputes += metrics.num_recomputes
        self._saved_blocks += metrics.shared_blocks
        self._peak_blocks += metrics.peak_blocks

    def _keep(self, record: RequestRecord) -> RequestRecord:
        self._served.end(record)
        if self._kept.records is None or len(self._records) < self._kept.records:
            self._records.append(record)
        return record
