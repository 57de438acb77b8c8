"""The part of a workload that a plan is made from, small enough to be simulated many times."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from random import Random

from quire.core.errors import ConfigError
from quire.engine.traces.request import Segment, TraceRequest
from quire_lab.workload import Clipping, Cut, arrival_times

MOST_REQUESTS = 1000
MOST_SAMPLE_TOKENS = 4_000_000

PARTS = ("busiest", "first", "whole")
"""Which requests are taken: as many in a row as bring most tokens a second, the first ones, or all.
Without times the busiest are the first."""


@dataclass(frozen=True)
class WorkloadSample:
    """Some of a workload's requests, clipped to a model's length, with their own times.

    part: which. num_all: requests that the workload has; own_rate: at which all of them come.
    """

    requests: tuple[TraceRequest, ...]
    cut: Cut
    shares_prefixes: bool
    has_times: bool
    seed: int = 0
    part: str = "first"
    num_all: int = 0
    own_rate: float | None = None

    @classmethod
    def take(
        cls,
        workload: Iterable[TraceRequest],
        max_model_len: int | None,
        *,
        shares_prefixes: bool,
        has_times: bool,
        seed: int,
        part: str = "busiest",
    ) -> WorkloadSample:
        """ConfigError if the workload is empty."""
        part = "first" if part == "busiest" and not has_times else part
        windows = _Windows(whole=part == "whole")
        for request in Clipping(workload, max_model_len):
            windows.add(request)
        if not windows.num_all:
            raise ConfigError("the workload holds no request")
        start, count = windows.busiest if part == "busiest" else windows.first
        clipping = Clipping(islice(workload, start, start + count), max_model_len)
        requests = tuple(clipping)
        has_times = has_times and requests[-1].arrival > requests[0].arrival
        own_rate = None
        if has_times and windows.seconds:
            own_rate = (windows.num_all - 1) / windows.seconds
        return cls(
            requests, clipping.cut, shares_prefixes, has_times, seed,
            "whole" if count == windows.num_all else part, windows.num_all, own_rate,
        )  # fmt: skip

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Mean tokens of prompts and of outputs."""
        count = len(self.requests)
        return (
            sum(request.prompt_tokens for request in self.requests) / count,
            sum(request.output_tokens for request in self.requests) / count,
        )

    @property
    def rate(self) -> float | None:
        """Requests per second, as they came."""
        if not self.has_times:
            return None
        seconds = self.requests[-1].arrival - self.requests[0].arrival
        return (len(self.requests) - 1) / seconds

    def at_once(self, width: int = 1, beams: bool = False) -> Iterator[TraceRequest]:
        """All of them at 0, each asking for ``width`` outputs or beams if that is more than one."""
        for request in self.requests:
            if width > 1:
                yield replace(request, arrival=0.0, n=width, beam_search=beams, max_tokens=None)
            else:
                yield replace(request, arrival=0.0)

    def at_rate(self, rate: float) -> Iterator[TraceRequest]:
        """The sample at this many requests per second: its own times, stretched, or a Poisson
        process.
        """
        if self.rate is None:
            times = arrival_times(Random(self.seed), rate)
        else:
            first, stretch = self.requests[0].arrival, self.rate / rate
            times = ((request.arrival - first) * stretch for request in self.requests)
        for request, time in zip(self.requests, times, strict=False):
            yield replace(request, arrival=time)

    def repeated(self, count: int) -> Iterator[TraceRequest]:
        """This many requests, the sample over and over; repeated ones share no new prefixes."""
        for number in range(count):
            round_, place = divmod(number, len(self.requests))
            request = self.requests[place]
            if round_:
                content = tuple(Segment(f"{round_} {name}", size) for name, size in request.content)
                request = replace(request, content=content)
            yield request

    def lengthened(self, rounds: int) -> WorkloadSample:
        """The sample several times as long, over and over at its own times, like ``repeated``."""
        count = len(self.requests)
        span = 0.0 if self.rate is None else count / self.rate
        requests = (
            replace(request, arrival=request.arrival + number // count * span)
            for number, request in enumerate(self.repeated(rounds * count))
        )
        return self if rounds == 1 else replace(self, requests=tuple(requests))


class _Windows:
    """Requests in a row, as many as a sample holds: the first of them and the busiest."""

    def __init__(self, whole: bool) -> None:
        self.num_all = 0
        self.first = (0, 0)  # place of the first request, and how many
        self.seconds = 0.0  # from the first request of all to the last
        self._whole = whole
        self._best = (-1.0, 0, 0)  # tokens a second; place and how many
        self._recent: deque[tuple[float, int]] = deque()  # time and tokens
        self._tokens = 0

    @property
    def busiest(self) -> tuple[int, int]:
        self._note()
        return self._best[1:]

    def add(self, request: TraceRequest) -> None:
        tokens = request.prompt_tokens + request.output_tokens
        if self._overflows(tokens):
            self._note()
        while self._overflows(tokens):
            self._tokens -= self._recent.popleft()[1]
        if len(self._recent) == self.num_all:
            self.first = (0, self.num_all + 1)
        self._recent.append((request.arrival, tokens))
        self._tokens += tokens
        self.num_all += 1
        self.seconds = request.arrival

    def _overflows(self, tokens: int) -> bool:
        recent = self._recent
        full = len(recent) >= MOST_REQUESTS or self._tokens + tokens > MOST_SAMPLE_TOKENS
        return full and bool(recent) and not self._whole

    def _note(self) -> None:
        """Keep the latest window, unless one as long was busier."""
        recent = self._recent
        seconds = recent[-1][0] - recent[0][0]
        rate = self._tokens / seconds if seconds else math.inf
        if rate > self._best[0]:
            self._best = (rate, self.num_all - len(recent), len(recent))
