"""What clients see of the requests of an engine, or of a fleet: counted as they end."""

from __future__ import annotations

from typing import Any

from quire.engine.metrics import RequestMetrics
from quire_lab.simulation.latencies import Distribution, Goals
from quire_lab.simulation.result import RequestRecord


class ServedCounter:
    """Adds up requests that have ended or were refused, in memory that does not grow.

    Times between tokens are an engine's to count, for it has them all.
    """

    def __init__(self, goals: Goals) -> None:
        self.num_finished = self.num_refused = self.num_met_goals = 0
        self.num_missed_ttft = self.num_missed_tpot = 0
        self._goals = goals
        self._tokens_in = self._tokens_out = 0
        self._first_refusal: str | None = None
        self._ttft, self._tpot = Distribution(), Distribution()
        self._normalized, self._e2e = Distribution(), Distribution()

    @property
    def num_missed(self) -> int:
        """Requests that missed the goals, or were refused."""
        return self.num_finished - self.num_met_goals + self.num_refused

    def end(self, record: RequestRecord) -> None:
        if record.metrics is None:
            self.num_refused += 1
            self._first_refusal = self._first_refusal or record.refused
        else:
            self._finish(record.metrics)

    def _finish(self, metrics: RequestMetrics) -> None:
        self.num_finished += 1
        for distribution, value in (
            (self._ttft, metrics.ttft),
            (self._tpot, metrics.tpot),
            (self._normalized, metrics.normalized_latency),
            (self._e2e, metrics.e2e_latency),
        ):
            if value is not None:
                distribution.add(value)
        late, slow = self._goals.misses_ttft(metrics), self._goals.misses_tpot(metrics)
        self.num_missed_ttft += late
        self.num_missed_tpot += slow
        self.num_met_goals += not (late or slow)
        self._tokens_in += metrics.num_prompt_tokens
        self._tokens_out += metrics.num_output_tokens

    def figures(self) -> dict[str, Any]:
        """Those that the results of an engine and of a fleet have in common, by name."""
        return {
            "num_finished": self.num_finished,
            "num_refused": self.num_refused,
            "num_met_goals": self.num_met_goals,
            "first_refusal": self._first_refusal,
            "tokens_in": self._tokens_in,
            "tokens_out": self._tokens_out,
            "ttft": self._ttft.summary(),
            "tpot": self._tpot.summary(),
            "normalized_latency": self._normalized.summary(),
            "e2e_latency": self._e2e.summary(),
        }
