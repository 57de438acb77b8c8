"""The part of a workload that a plan is made from, small enough to be simulated many times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from random import Random

from quire.errors import ConfigError
from quire.workload import Segment, TraceRequest, arrival_times

MOST_REQUESTS = 1000
MOST_SAMPLE_TOKENS = 4_000_000


@dataclass(frozen=True)
class WorkloadSample:
    """A workload's first requests, clipped to a model's length, with their own times."""

    requests: tuple[TraceRequest, ...]
    num_clipped: int
    shares_prefixes: bool
    has_times: bool
    seed: int = 0

    @classmethod
    def take(
        cls,
        workload: Iterable[TraceRequest],
        max_model_len: int | None,
        *,
        shares_prefixes: bool,
        has_times: bool,
        seed: int,
    ) -> WorkloadSample:
        """ConfigError if the workload is empty."""
        requests: list[TraceRequest] = []
        tokens = clipped = 0
        for request in islice(workload, MOST_REQUESTS):
            fitting = request if max_model_len is None else request.clipped(max_model_len)
            clipped += fitting is not request
            requests.append(fitting)
            tokens += fitting.prompt_tokens + fitting.output_tokens
            if tokens > MOST_SAMPLE_TOKENS:
                break
        if not requests:
            raise ConfigError("the workload holds no request")
        has_times = has_times and requests[-1].arrival > requests[0].arrival
        return cls(tuple(requests), clipped, shares_prefixes, has_times, seed)

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Of prompts and of outputs."""
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
        """At so many requests per second: their own times, stretched, or a Poisson process."""
        if self.rate is None:
            times = arrival_times(Random(self.seed), rate)
        else:
            first, stretch = self.requests[0].arrival, self.rate / rate
            times = ((request.arrival - first) * stretch for request in self.requests)
        for request, time in zip(self.requests, times, strict=False):
            yield replace(request, arrival=time)

    def repeated(self, count: int) -> Iterator[TraceRequest]:
        """So many requests, the sample over and over; what is repeated shares nothing anew."""
        for number in range(count):
            round_, place = divmod(number, len(self.requests))
            request = self.requests[place]
            if round_:
                content = tuple(Segment(f"{round_} {name}", size) for name, size in request.content)
                request = replace(request, content=content)
            yield request
