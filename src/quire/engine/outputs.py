"""What a request gives: deltas while it runs, a RequestOutput (vLLM's names) when it is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from quire.errors import QuireError
from quire.metrics import RequestMetrics


class Logprob(NamedTuple):
    """One candidate at one position."""

    logprob: float
    rank: int  # 1 is the likeliest
    decoded_token: str


TokenLogprobTable = dict[int, Logprob]
"""Token id -> Logprob at one position: the chosen token first, then the likeliest ones."""


@dataclass
class CompletionOutput:
    """One of a request's n outputs."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None  # None unless logprobs were asked for
    logprobs: list[TokenLogprobTable] | None = None
    finish_reason: str | None = None  # stop, length, abort or error
    stop_reason: int | str | None = None  # the stop token or string, if one ended it


@dataclass
class RequestOutput:
    """A finished request."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprobTable | None] | None  # None for the first token
    metrics: RequestMetrics
    finished: bool = True


@dataclass(frozen=True)
class Delta:
    """What one step added to one of a request's outputs.

    A beam's tokens come all at once, when the search is over. With best_of above n every branch
    gives deltas, and only ``final`` tells which of them are returned.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobTable, ...] | None
    seconds: float  # since this output's last token; for the first, since the request arrived
    first: bool
    finish_reason: str | None = None
    stop_reason: int | str | None = None  # what went wrong, where finish_reason is error
    final: RequestOutput | None = None  # with the delta that ends the request
    failure: QuireError | None = None  # what to tell the caller, where finish_reason is error
