"""Some seconds of an engine, for Perfetto: its steps with their parts, requests, decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from quire.core.errors import BusyError
from quire.core.memory import Usage
from quire.core.protocol import Decision, Step, Verdict
from quire.engine.events import Events, RequestState, Watcher
from quire.engine.tracing.trace_events import TraceEvents, in_lines

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
    """Notes what an engine does from now on, up to a bound on its memory.

    Times are those of the monotonic clock. No text is noted.
    """

    def __init__(self, events: Events, now: float) -> None:
        """BusyError if another one is being taken already."""
        if events.find(Profile) is not None:
            raise BusyError("a profile is being taken already; ask again when it is done")
        events.add(self)
        self._events, self._begun = events, now
        self._parts: list[tuple[str, float, float]] = []
        self._steps: list[_Planned] = []
        self._decisions: list[tuple[float, Decision]] = []
        self._requests: list[tuple[RequestState, bool]] = []
        self._waits: dict[str, str] = {}  # why, by request
        self._left = _MOST

    def part(self, name: str, begin: float, end: float) -> None:
        if self._room():
            self._parts.append((name, begin, end))

    def planned(self, step: Step) -> None:
        if step.chunks and self._room():
            facts = step.num_tokens, len(step.chunks), len(step.moves), step.usage
            self._steps.append(_Planned(step.now, *facts))

    def decided(self, step: Step) -> None:
        for decision in step.decisions:
            still = self._waits.get(decision.request_id) == decision.why
            if decision.what is Verdict.WAIT:
                self._waits[decision.request_id] = decision.why
            else:
                self._waits.pop(decision.request_id, None)
                still = False
            if not still and self._room():
                self._decisions.append((step.now, decision))

    def ended(self, state: RequestState) -> None:
        self._requests.append((state, True))

    def finish(self, living: Iterable[RequestState]) -> None:
        """Stop noting. living: requests that have not ended."""
        self._events.remove(self)
        self._requests += [(state, False) for state in living]

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
            (max(one[0].metrics.arrival_time, self._begun), one[0].metrics.finished_time, one)
            for one in self._requests
        )
        for line, (state, over) in in_lines(lives):
            request, metrics = state.request, state.metrics
            end = self._at(metrics.finished_time)
            begin = self._at(metrics.arrival_time)
            facts = {
                "request": request.request_id,
                "http request": request.origin.request_id,
                "prompt tokens": metrics.num_prompt_tokens,
                "output tokens": metrics.num_output_tokens,
                "cached tokens": metrics.cached_tokens,
                "peak blocks": metrics.peak_blocks,
                "over": over,
                "error": state.error,
            }
            events.bar(_REQUESTS, line, f"request {request.request_id}", begin, end, facts)
            for name, since, until in self._phases(state, decided.get(request.request_id, [])):
                events.bar(_REQUESTS, line, name, self._at(since), self._at(until))

    def _phases(
        self, state: RequestState, decided: Iterable[tuple[float, Decision]]
    ) -> Iterator[tuple[str, float, float]]:
        """The phases of a request, with their begin and end."""
        metrics = state.metrics
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
