"""What crosses the border between deciding and doing: a Step out, a StepResult back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from quire.core.memory import BlockMove, BlockTable, Usage
from quire.core.protocol.decision import Decision
from quire.core.protocol.request import FinishReason, Request
from quire.core.protocol.soft_cut import SoftCut

IN_FLIGHT = -1
"""Stands in a chunk for the token that the step before samples for the same sequence. The step was
planned before that token was known; its executor has it."""

TO_DRAFT = -2
"""Stands in a chunk for a draft that the executor's draft model is to make, in this step."""

_UNKNOWN = Usage()


class Opened(NamedTuple):
    """A sequence that steps compute from now on. One that is known already begins a new request."""

    seq_id: int
    request: Request
    branch: int  # its number among the request's outputs
    output_start: int  # position of the request's first output token


class Forked(NamedTuple):
    """A sequence that goes its own way from now on, with all that ``parent`` has computed."""

    parent: int
    child: int
    branch: int


class Readout(NamedTuple):
    """What is to be made of a chunk's last rows."""

    rows: int = 1  # sampled, the last ones: 1, and one for each draft at the end of the chunk; or 0
    draws: int = 1  # samples from the last of them: n at the end of a trunk of n branches
    candidates: int = 0  # for beam search: likeliest next tokens to report, none sampled
    pool: bool = False  # a vector of the whole prompt; nothing is sampled


class Chunk(NamedTuple):
    """Tokens of one sequence to compute in this step: all that a forward pass needs of it."""

    seq_id: int
    token_ids: Sequence[int]  # or IN_FLIGHT alone; the last may be TO_DRAFT
    start: int  # position of the first of them
    table: BlockTable  # with room for them
    output_start: int  # see Opened
    readout: Readout | None  # None in the midst of a prefill
    cuts: Sequence[SoftCut] = ()  # of the sequence, in their order
    # (tokens of the sequence, slot): what its state is after so many of them is left there, too.
    left: Sequence[tuple[int, int]] = ()

    @property
    def drafts(self) -> Sequence[int]:
        """The tokens at its end that nobody has confirmed."""
        rows = 1 if self.readout is None else self.readout.rows
        return self.token_ids[len(self.token_ids) - rows + 1 :]


@dataclass(frozen=True)
class Step:
    """One iteration: carry out the moves in order, then compute all chunks in one batch.

    opened, forked, closed: who lives from this step on, in this order; what an executor keeps of
        a sequence can be forgotten once it is closed.
    within: those whose texts ended among a chunk's drafts, before which their sessions rest.
    ahead: planned while the one before is under way, so that there may be tokens IN_FLIGHT.
    now: when it was planned. usage: of the pool while it is under way.
    """

    moves: list[BlockMove] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    opened: Sequence[Opened] = ()
    forked: Sequence[Forked] = ()
    closed: Sequence[int] = ()
    within: Sequence[int] = ()
    ahead: bool = False
    now: float = 0.0
    usage: Usage = _UNKNOWN

    @cached_property
    def num_tokens(self) -> int:
        """Of a step that is complete."""
        return sum([len(chunk.token_ids) for chunk in self.chunks])


class TokenLogprobs(NamedTuple):
    """A token's log-probability under the model, and those of the likeliest tokens."""

    logprob: float
    rank: int  # 1 is the likeliest
    top: Sequence[tuple[int, float]]  # (token id, logprob), likeliest first


class Sample(NamedTuple):
    token_id: int
    logprobs: TokenLogprobs | None = None


class Outcome(NamedTuple):
    """What a step gave for one sequence.

    tokens: that follow what was known of it: one, after as many drafts as have turned out right.
    forks: first tokens of further branches, one for each draw but the first.
    candidates: likeliest next tokens and their log-probabilities, likeliest first.
    prompt_logprobs: for each token of the chunk whose successor is in the prompt, the
        log-probabilities of that successor.
    vector: of the prompt, where the readout pools it.
    forced: what ``tokens`` can only go on with, by the request's grammar; empty where executors
        do not look for it.
    failure: why nothing could be sampled. Its request cannot go on.
    late: nothing was sampled, because what may come next was not known in time. It can be another
        time.
    beside: seconds of a processor that it has taken beside the model, since the last outcome.
    """

    tokens: Sequence[Sample] = ()
    forks: Sequence[Sample] = ()
    candidates: Sequence[tuple[int, float]] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    forced: Sequence[int] = ()
    vector: Sequence[float] | None = None
    failure: str | None = None
    late: bool = False
    beside: float = 0.0


@dataclass(frozen=True)
class StepResult:
    """What executing a step gave.

    outcomes: by seq_id, of the chunks that were to be read out, or whose prompt is scored.
    failed_moves: block moves to or from the host that did not take place.
    delays: by seq_id, the seconds by which what its request asks for beside tokens has made the
        step longer: log-probabilities, edits of logits, stop strings.
    """

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    failed_moves: list[BlockMove] = field(default_factory=list)
    delays: dict[int, float] = field(default_factory=dict)


def confirmed(samples: Sequence[Sample | None], drafts: Sequence[int]) -> Sequence[Sample]:
    """The tokens that a text goes on with, if ``drafts`` are what it was taken to go on with.

    samples: one more than drafts: what was sampled after the token before each of them, and after
        the last. None: nothing could be. As each was sampled as if all drafts before it were right,
        none counts after the first that was wrong.
    """
    tokens: list[Sample] = []
    for sample, draft in zip(samples, (*drafts, None), strict=True):
        if sample is None:
            break
        tokens.append(sample)
        if sample.token_id != draft:
            break
    return tokens


class Progress(NamedTuple):
    """One new token of one of a request's outputs, or the end of a request that wants none."""

    request: Request
    seq_id: int
    branch: int
    sample: Sample | None  # None: its prompt has been computed, which is all
    finish_reason: FinishReason | None
    cumulative_logprob: float | None = None  # of the whole output, with the last token of a beam
