"""What crosses the border between deciding and doing: a Step out, a StepResult back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from quire.memory import BlockMove, BlockTable
from quire.scheduling.decision import Decision
from quire.scheduling.request import FinishReason, Request

IN_FLIGHT = -1
"""Stands in a chunk for the token that the step before samples for the same sequence. The step was
planned before that token was known; its executor has it."""


class Chunk(NamedTuple):
    """Tokens of one sequence to compute in this step, and what to sample after them."""

    seq_id: int
    request: Request
    branch: int  # its place among the request's outputs
    token_ids: list[int]  # or IN_FLIGHT alone
    start: int  # position of the first of them
    table: BlockTable  # with room for them
    num_samples: int  # 0 in the midst of a prefill; n at the end of a trunk of n branches
    history: tuple[int, ...]  # output tokens that are known, if the params need them
    output_start: int  # position of the request's first output token
    num_candidates: int = 0  # for beam search: likeliest next tokens to report, none sampled


@dataclass(frozen=True)
class Step:
    """One iteration: carry out the moves in order, then compute all chunks in one batch."""

    moves: list[BlockMove]
    chunks: list[Chunk]
    decisions: list[Decision]
    ahead: bool = False  # planned while the one before is under way: there may be tokens IN_FLIGHT

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.token_ids) for chunk in self.chunks)


class TokenLogprobs(NamedTuple):
    """A token's log-probability under the model, and those of the likeliest tokens."""

    logprob: float
    rank: int  # 1 is the likeliest
    top: Sequence[tuple[int, float]]  # (token id, logprob), likeliest first


class Sample(NamedTuple):
    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class StepResult:
    """What executing a step gave.

    samples: seq_id -> as many samples as its chunk asked for.
    prompt_logprobs: seq_id -> for each token of the chunk whose successor is in the prompt, the
        log-probabilities of that successor.
    candidates: seq_id -> the likeliest next tokens and their log-probabilities, likeliest first.
    failed_moves: block moves to or from the host that did not take place.
    failures: seq_id -> why nothing could be sampled for it. Its request cannot go on.
    """

    samples: dict[int, list[Sample]]
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    candidates: dict[int, Sequence[tuple[int, float]]] = field(default_factory=dict)
    failed_moves: list[BlockMove] = field(default_factory=list)


class Executor(Protocol):
    """Carries out steps on some device."""

    def execute(self, step: Step) -> StepResult: ...


class StepUnderWay(Protocol):
    """A step that a device computes by itself."""

    def collect(self) -> StepResult:
        """Wait for it. To be asked for once, of one step after the other."""
        ...


@runtime_checkable
class PipelinedExecutor(Executor, Protocol):
    """Carries out steps on a device that needs nobody to wait for it.

    Steps take effect in the order in which they are submitted, moves included: one that is
    submitted while another is under way reads what that one writes, and writes only where that one
    has read.
    """

    def submit(self, step: Step) -> StepUnderWay:
        """Begin a step: one that was planned ahead after the one under way, others after none."""
        ...


class Progress(NamedTuple):
    """One new token of one of a request's outputs."""

    request: Request
    seq_id: int
    branch: int
    sample: Sample
    finish_reason: FinishReason | None
    cumulative_logprob: float | None = None  # of the whole output, with the last token of a beam
