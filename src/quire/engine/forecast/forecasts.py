"""Forecasts of an engine's requests, held against what came of them."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from quire.core.protocol import Request, Step
from quire.core.scheduling import Scheduler, SequenceGroup
from quire.engine.events import RequestState, Taken, Watcher
from quire.engine.forecast.ahead import Ahead
from quire.engine.forecast.outlook import Coming, Expected, Outlook
from quire.engine.forecast.step_times import StepTimes, StepWork

_FADING = 0.9  # what the gain of a step counts for when another has come
_LATEST = 512  # forecasts that are kept, with what came
_MOST_AHEAD = 256  # requests of which one thinks when another comes
_SURE_COUNT, _SURE_SHARE, _SURE_EXCESS = 16, 0.8, 1.5  # of what is sure enough to refuse by it
_TEXTS = 256  # whose lengths are remembered
_FADING_RATE = 120.0  # seconds after which an arrival counts for a third
_FADING_SIZE = 0.95  # what the size of a request counts for when another has come
_FEWEST = 4  # arrivals of which nothing is concluded
_FADING_DRIFT = 0.9  # what a request's drift counts for when another has ended
_MOST_DRIFT = 4.0
_NEAR, _SOON = 0.2, 0.05  # a share of the time, or seconds, by which a good one may be off


@dataclass(frozen=True)
class Grade:
    """Of the latest forecasts, how many came true: to 20 % or 50 ms. null: there were none."""

    count: int
    first_tokens: float | None
    ends: float | None


class _Entries(NamedTuple):
    """When newcomers are let in: seconds after ``made``, by how many had left the queue."""

    made: float
    left: int
    times: tuple[float, ...]


class _Basis(NamedTuple):
    """What was expected of a request, and the seconds that this rests on."""

    expected: Expected
    waited: float  # before anything was said
    first: float  # from then to its first token, by steps
    rest: float  # from there to its end


class Forecasts(Watcher):
    """Learns the pace of steps, the lengths of texts and how many come, and grades itself.

    Nothing is said before some steps were seen, of requests that write nothing, and where too many
    wait to tell.

    under_way: the step that has been begun, if any.
    tell: called with what is expected of a request, once that is known.
    """

    def __init__(
        self,
        scheduler: Callable[[], Scheduler],
        under_way: Callable[[], Step | None],
        clock: Callable[[], float],
        tell: Callable[[str, Expected], None] = lambda request_id, expected: None,
    ) -> None:
        self._scheduler, self._under_way, self._clock = scheduler, under_way, clock
        self._tell = tell
        self._times, self._lengths, self._arrivals = StepTimes(), TextLengths(), ArrivalRate()
        self._gain = 1.0  # tokens of a sequence in a step
        self._busy_since: float | None = None  # the latest step's end, where it left work
        self._first, self._rest = Drift(), Drift()
        self._coming: Coming | None = None  # what was known of it before the new ones came
        self._expected: dict[str, _Basis] = {}
        self._by_origin = OrderedDict[str, Expected]()  # of the latest
        self._entries = _Entries(0.0, 0, ())
        self.unsaid: list[str] = []  # requests of which nothing was said yet
        self._wait = 0.0  # of the one that came last, to be let in
        self._found: dict[str, tuple[int, float]] = {}  # see Ahead
        self._kept: deque[tuple[bool, bool]] = deque(maxlen=_LATEST)

    def of(self, request_id: str) -> Expected | None:
        """What is expected of a request that has not ended."""
        told = self._expected.get(request_id)
        return told and told.expected

    def take(self, request_id: str) -> Expected | None:
        """What was expected of all that a client has asked for by one request; it is told once.

        Any thread may ask.
        """
        return self._by_origin.pop(request_id, None)

    def wait_of(self, count: int) -> float | None:
        """Seconds until ``count`` newcomers have been let in, by the latest forecast.

        None: it does not tell. Any thread may ask.
        """
        made, left, entries = self._entries
        first = self._scheduler().queue.num_left - left
        if not 0 <= first < len(entries) or count < 1:
            return None
        now, number = self._clock(), first + count - 1
        at = entries[min(number, len(entries) - 1)]
        at += max(0, number + 1 - len(entries)) * entries[-1] / len(entries)
        late = max(0.0, now - made - entries[first])  # the next one should have been let in
        return max(0.0, made + at + late - now)

    def will_wait(self, longest: float) -> bool:
        """Whether the request that came last is sure to wait longer than that to be let in.

        Sure is what exceeds it by half, where first tokens have come when they were expected.
        """
        grade = self.grade
        if self._wait <= _SURE_EXCESS * longest or grade.count < _SURE_COUNT:
            return False
        return grade.first_tokens is not None and grade.first_tokens >= _SURE_SHARE

    @property
    def grade(self) -> Grade:
        """How many of the latest forecasts came true."""
        kept = [*self._kept]
        if not kept:
            return Grade(0, None, None)
        first, end = (sum(one[n] for one in kept) / len(kept) for n in range(2))
        return Grade(len(kept), first, end)

    def began(self, request: Request) -> None:
        scheduler = self._scheduler()
        own = scheduler.group(request.request_id)
        self._wait = 0.0
        if own is None or request.pooling is not None:
            return
        now = self._clock()
        if not self.unsaid:
            self._coming = self._arrivals.coming
        self._arrivals.came(now, own.branches[0].num_pending, self._output(own))
        if not self._times.is_known:
            return
        if len(scheduler.running) + scheduler.queue.num_waiting <= _MOST_AHEAD:
            self.unsaid.append(request.request_id)

    def gathered(self) -> None:
        """Say what is expected of all that have come since the last time: of a burst one thinks
        once.
        """
        if not self.unsaid:
            return
        new, scheduler, now = self.unsaid, self._scheduler(), self._clock()
        self.unsaid = []
        own = [group for group in map(scheduler.group, new) if group is not None]
        if not own:  # they have ended
            return
        step = self._under_way()
        ahead = Ahead(scheduler, own, step, self._found, self._output)
        outlook = Outlook(ahead.running, ahead.waiting, ahead.room, self._times.seconds)
        outlook.of(ahead.waiting[-1], self._coming)
        left = 0.0  # of the step under way
        if step is not None:
            begun = step.now if self._busy_since is None else self._busy_since
            left = max(0.0, self._times.seconds(StepWork.of(step)) - (now - begun))
        drift = self._first.times
        entered = (one.entered * drift for one in ahead.newcomers if one.entered is not None)
        made = now + left * drift
        self._entries = _Entries(made, scheduler.queue.num_left, tuple(sorted(entered)))
        for request in (group.request for group in own):
            task, waited = ahead.own[request.request_id], now - request.arrival
            if request.request_id == new[-1] and task.entered is not None:
                self._wait = waited + drift * (left + task.entered)
            if (found := outlook.found(task)) is not None:
                first, rest = left + found.first_token, found.end - found.first_token
                at = waited + drift * first
                expected = Expected(at, at + self._rest.times * rest)
                self._note(request, _Basis(expected, waited, first, rest))

    def _note(self, request: Request, told: _Basis) -> None:
        self._expected[request.request_id], expected = told, told.expected
        self._tell(request.request_id, expected)
        name = request.origin.request_id
        if name:
            before = self._by_origin.pop(name, expected)
            self._by_origin[name] = Expected(*map(max, before, expected))
            if len(self._by_origin) > _LATEST:
                self._by_origin.popitem(last=False)

    def took(self, taken: Taken) -> None:
        now, begun = self._clock(), self._busy_since
        self._busy_since = now if self._scheduler().has_work else None
        if taken.seconds is None or not taken.step.chunks:
            return
        # What is between two steps, those who wait for the second wait for as well.
        seconds = taken.seconds if begun is None else now - begun
        self._times.learn(StepWork.of(taken.step), seconds)
        rows = sum(1 for chunk in taken.step.chunks if chunk.readout is not None)
        if rows and taken.num_tokens:
            self._gain += (taken.num_tokens / rows - self._gain) * (1 - _FADING)

    def ended(self, state: RequestState) -> None:
        metrics, name = state.metrics, state.request.request_id
        told = self._expected.pop(name, None)
        self._found.pop(name, None)
        if state.reason == "stop" and metrics.num_output_tokens:
            self._lengths.learn(metrics.num_output_tokens // max(1, len(state.outputs)))
        if told is None or state.error is not None or metrics.ttft is None:
            return
        if state.reason in ("stop", "length"):
            expected, ttft, end = told.expected, metrics.ttft, metrics.e2e_latency
            self._kept.append((_is_true(expected.first_token, ttft), _is_true(expected.end, end)))
            self._first.learn(told.first, ttft - told.waited)
            self._rest.learn(told.rest, end - ttft)

    def _output(self, group: SequenceGroup) -> int:
        """Steps in which it writes what is left, by what others have written."""
        request, written = group.request, group.branches[0].num_output_tokens
        whole: float = request.max_tokens
        if not request.params.ignore_eos:
            whole = min(whole, max(self._lengths.whole(written), request.min_tokens))
        return max(1, round((whole - written) / self._gain))


def _is_true(expected: float, found: float) -> bool:
    return abs(expected - found) <= max(_NEAR * found, _SOON)


class Drift:
    """How many times as long as by steps it has taken of late: what no step tells.

    Long times count for more: who comes first of a burst waits for a step that the others fill.
    """

    def __init__(self) -> None:
        self._expected = self._found = _SOON

    @property
    def times(self) -> float:
        return min(max(self._found / self._expected, 1 / _MOST_DRIFT), _MOST_DRIFT)

    def learn(self, expected: float, found: float) -> None:
        if min(expected, found) > 0:
            self._expected = self._expected * _FADING_DRIFT + expected
            self._found = self._found * _FADING_DRIFT + found


class TextLengths:
    """The lengths of the latest texts that ended by themselves."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []
        self._sums: list[int] = []  # of each and those that are longer, longest first

    def learn(self, tokens: int) -> None:
        self._latest.append(tokens)
        insort(self._sorted, tokens)
        if len(self._latest) > _TEXTS:
            self._sorted.remove(self._latest.popleft())
        self._sums = [0, *accumulate(reversed(self._sorted))]

    def whole(self, written: int) -> float:
        """Tokens that an output of ``written`` has in the end: as others that came so far.

        Infinite: there was none.
        """
        longer = len(self._sorted) - bisect_right(self._sorted, written)
        if longer:
            return self._sums[longer] / longer
        return 1.5 * written if self._sorted else math.inf


class ArrivalRate:
    """How many requests come, and what they are."""

    def __init__(self) -> None:
        self._count = self._seconds = 0.0  # fading alike
        self._last: float | None = None
        self._prompt = self._output = 0.0

    def came(self, now: float, prompt: int, output: int) -> None:
        """A request has come: ``prompt`` tokens to compute, ``output`` to write."""
        if self._last is None:
            self._prompt, self._output = prompt, output
        else:
            apart = max(0.0, now - self._last)
            fading = math.exp(-apart / _FADING_RATE)
            self._count = self._count * fading + 1
            self._seconds = self._seconds * fading + apart
            self._prompt += (prompt - self._prompt) * (1 - _FADING_SIZE)
            self._output += (output - self._output) * (1 - _FADING_SIZE)
        self._last = now

    @property
    def coming(self) -> Coming | None:
        """The requests to expect in the next minutes; None: too few have come."""
        if self._count < _FEWEST or not self._seconds:
            return None
        apart = self._seconds / self._count
        return Coming(apart, max(1, round(self._prompt)), max(1, round(self._output)))
