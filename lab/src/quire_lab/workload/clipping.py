"""Requests cut to what a model takes, and what was lost by that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from quire.engine.traces.request import TraceRequest


class Cut(NamedTuple):
    """What a model's length leaves out. A lower limit alone is not a cut: no token is lost."""

    requests: int = 0
    tokens: int = 0
    of_tokens: int = 0  # of all requests, before

    def __str__(self) -> str:
        share = self.tokens / (self.of_tokens or 1)
        return f"{self.requests:,} cut, which loses {share:.1%} of all tokens"


class Clipping:
    """A workload as a model of some length can serve it. ``cut``: so far."""

    def __init__(self, workload: Iterable[TraceRequest], max_model_len: int | None) -> None:
        self.cut = Cut()
        self._workload = workload
        self._max_model_len = max_model_len

    def __iter__(self) -> Iterator[TraceRequest]:
        self.cut = Cut()
        longest = self._max_model_len
        for request in self._workload:
            fitting = request if longest is None else request.clipped(longest)
            before, after = _tokens(request), _tokens(fitting)
            requests, lost, of_tokens = self.cut
            self.cut = Cut(requests + (after < before), lost + before - after, of_tokens + before)
            yield fitting


def _tokens(request: TraceRequest) -> int:
    return request.prompt_tokens + request.output_tokens
