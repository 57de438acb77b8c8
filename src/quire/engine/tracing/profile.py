"""Some seconds of an engine, for Perfetto: its steps with their parts, requests, decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from quire.core.memory import Usage
from quire.core.protocol import Decision, Request, Step, Verdict
from quire.engine.tracing.trace_events import TraceEvents, in_lines
from quire.engine.tracing.watcher import Standing, Watcher

_STEPS, _MEMORY, _REQUESTS, _DECISIONS = 1, 2, 3, 4  # "processes" of the trace
_MOST = 250_000  # of all that is noted
_FROM_WAITING = {Verdict.WAIT, Verdict.ADMIT, Verdict.RESUME}
_PHASES = {Verdict.SWAP: "swapped out", Verdict.RECOMPUTE: "to recompute"}


class _Planned(NamedTuple):
    time: float
    tokens: int
    sequences: int
    moves: int
    usage: Usage


class Profile(Watcher):
    """Notes what an engine does from ``begun`` on, up to a bound on its memory.

    ``part`` is for ``Parts.listen``. Times are those of the monotonic clock. No text is noted.
    """

    def __init__(self, begun: float) -> None:
        self._begun = begun
        self._parts: list[tuple[str, float, float]] = []
        self._steps: list[_Planned] = []
        self._decisions: list[tuple[float, Decision]] = []
        self._requests: list[tuple[Request, Standing, bool]] = []
        self._waits: dict[str, str] = {}  # why, by request
        self._left = _MOST

    def part(self, name: str, begin: float, end: float) -> None:
        """Of a step."""
        if self._room():
            self._parts.append((name, begin, end))

    def planned(self, step: Step) -> None:
        if step.chunks and self._room():
            facts = step.num_tokens, len(step.chunks), len(step.moves), step.usage
            self._steps.append(_Planned(step.now, *facts))
        for decision in step.decisions:
            still = self._waits.get(decision.request_id) == decision.why
            if decision.what is Verdict.WAIT:
                self._waits[decision.request_id] = decision.why
            else:
                self._waits.pop(decision.request_id, None)
                still = False
            if not still and self._room():
                self._decisions.append((step.now, decision))

    def ended(self, request: Request, standing: Standing) -> None:
        self._requests.append((request, standing, True))

    def finish(self, living: Iterable[tuple[Request, Standing]]) -> None:
        """Nothing more is to come; these requests have not ended."""
        self._requests += [(request, standing, False) for request, standing in living]

    def trace(self) -> dict[str, Any]:
        """JSON for Perfetto. Takes a while: it is for another thread than the engine's."""
        names = {_STEPS: "steps", _MEMORY: "KV memory and batch", _REQUESTS: "requests"}
        events = TraceEvents({**names, _DECISIONS: "decisions"})
        for name, begin, end in self._parts:
            events.bar(_STEPS, 1, name, self._at(begin), self._at(end))
        for step in self._steps:
            time = self._at(step.time)
            events.counter(_MEMORY, "KV slots", time, step.usage._asdict())
            batch = {"tokens": step.tokens, "sequences": step.sequences, "moves": step.moves}
            events.counter(_MEMORY, "batch", time, batch)
        for decision_time, decision in self._decisions:
            facts = {"decision": str(decision)}
            events.mark(_DECISIONS, decision.what.value, self._at(decision_time), facts)
        self._bars(events)
        cut = {"cut": f"at {_MOST:,} notes"} if self._left <= 0 else {}
        return {**events.trace(), "otherData": {"times": "since the profile began", **cut}}

    def _bars(self, events: TraceEvents) -> None:
        decided: dict[str, list[tuple[float, Decision]]] = {}
        for time, decision in self._decisions:
            decided.setdefault(decision.request_id, []).append((time, decision))
        lives = (
            (max(one[1].metrics.arrival_time, self._begun), one[1].metrics.finished_time, one)
            for one in self._requests
        )
        for line, (request, standing, over) in in_lines(lives):
            metrics, end = standing.metrics, self._at(standing.metrics.finished_time)
            begin = self._at(metrics.arrival_time)
            facts = {
                "request": request.request_id,
                "http request": request.origin.request_id,
                "prompt tokens": metrics.num_prompt_tokens,
                "output tokens": metrics.num_output_tokens,
                "cached tokens": metrics.cached_tokens,
                "peak blocks": metrics.peak_blocks,
                "over": over,
                "error": standing.error,
            }
            events.bar(_REQUESTS, line, f"request {request.request_id}", begin, end, facts)
            for name, since, until in self._phases(standing, decided.get(request.request_id, [])):
                events.bar(_REQUESTS, line, name, self._at(since), self._at(until))

    def _phases(
        self, standing: Standing, decided: Iterable[tuple[float, Decision]]
    ) -> Iterator[tuple[str, float, float]]:
        """What a request did from one time to another."""
        metrics = standing.metrics
        changes: list[tuple[float, str]] = []
        waits = metrics.arrival_time >= self._begun
        for time, decision in decided:
            waits = waits or (not changes and decision.what in _FROM_WAITING)
            if decision.what in (Verdict.ADMIT, Verdict.RESUME):
                changes.append((time, "running"))
            elif decision.what in _PHASES:
                changes.append((time, _PHASES[decision.what]))
        since, name = max(metrics.arrival_time, self._begun), "waiting" if waits else "running"
        first = metrics.first_token_time
        for time, then in [*changes, (metrics.finished_time, "")]:
            if name == "running" and first is not None and since < first < time:
                yield "prefill", since, first
                since, name = first, "decoding"
            elif name == "running":
                name = "decoding" if first is not None and first <= since else "prefill"
            yield name, since, time
            since, name = time, then

    def _at(self, time: float) -> float:
        return max(0.0, time - self._begun)

    def _room(self) -> bool:
        self._left -= 1
        return self._left > 0
