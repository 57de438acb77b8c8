"""A Step becomes tokens: moves, one forward pass over the mixed batch, sampling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from quire.execution.forward import NOT_FED, BlockStore, Fed, Forward
from quire.execution.sampler import Draws, SampleRow, beam_candidates, draw, token_logprobs
from quire.execution.transfer import to_device
from quire.kernels.ops import Kernels
from quire.model import Model
from quire.scheduling import IN_FLIGHT, Chunk, Step, StepResult, TokenLogprobs

_NOT_NUMBERS = "the model's logits are not numbers (NaN)"
_PROMPT_LOGPROB_ROWS = 256  # bounds the logits held at once while a prompt is scored


class ModelExecutor:
    """Executes steps with a model and the pool that holds its keys and values.

    A ``PipelinedExecutor``: what a step reads and writes is ordered by the stream on which all of
    it is launched. Where the calling thread computes, ``submit`` returns when that is done.
    """

    def __init__(
        self, model: Model, kv_cache: BlockStore, forward: Forward, kernels: Kernels
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._forward = forward
        self._kernels = kernels
        self._last = _Sampled((), None)

    def execute(self, step: Step) -> StepResult:
        """See ``Executor``."""
        return self.submit(step).collect()

    @torch.inference_mode()
    def submit(self, step: Step) -> SubmittedStep:
        """See ``PipelinedExecutor``. Waits where requests ask for more than samples: beams and
        log-probabilities of prompts are looked at at once, top_k and top_p to see how many tokens
        they keep."""
        result = StepResult({}, failed_moves=self._kv_cache.move(step.moves))
        if not step.chunks:
            return SubmittedStep(result, _Sampled((), None))
        bounds = [0, *accumulate(len(chunk.token_ids) for chunk in step.chunks)]
        rows = [
            (chunk, end - 1)
            for chunk, end in zip(step.chunks, bounds[1:], strict=True)
            if chunk.num_samples or chunk.num_candidates
        ]
        fed = self._last.feed(step.chunks, bounds) if step.ahead else NOT_FED
        hidden = self._forward(step.chunks, [row for _, row in rows], fed)
        self._last = _Sampled((), None)
        if rows:
            # Only rows that are sampled pass the LM head, each once however many samples it gives.
            logits = self._model.logits(hidden.asked)
            chunks = [chunk for chunk, _ in rows]
            self._last = _sample(chunks, logits, self._kernels)
            _find_candidates(chunks, logits, result)
        result.prompt_logprobs.update(self._prompt_logprobs(step.chunks, bounds, hidden.states))
        return SubmittedStep(result, self._last)

    def _prompt_logprobs(
        self, chunks: Sequence[Chunk], bounds: Sequence[int], hidden: Tensor
    ) -> Iterator[tuple[int, list[TokenLogprobs]]]:
        for chunk, first in zip(chunks, bounds[:-1], strict=True):
            num_top = chunk.request.params.prompt_logprobs
            if num_top is None:
                continue
            end = chunk.start + len(chunk.token_ids)
            successors = chunk.request.prompt_token_ids[chunk.start + 1 : end + 1]
            entries: list[TokenLogprobs] = []
            for i in range(0, len(successors), _PROMPT_LOGPROB_ROWS):
                part = successors[i : i + _PROMPT_LOGPROB_ROWS]
                logits = self._model.logits(hidden[first + i : first + i + len(part)])
                entries += token_logprobs(logits, part, [num_top] * len(part))
            yield chunk.seq_id, entries


class _Sampled(NamedTuple):
    """The samples of a step: one row of ``draws`` for each that a chunk asks for, in order."""

    chunks: Sequence[Chunk]
    draws: Draws | None  # None: nothing was sampled

    def feed(self, chunks: Sequence[Chunk], bounds: Sequence[int]) -> Fed:
        """What the next step's chunks need of it; the tokens of chunk i begin at ``bounds[i]``."""
        asking = [i for i, chunk in enumerate(chunks) if chunk.token_ids[0] == IN_FLIGHT]
        if self.draws is None or not asking:
            return NOT_FED
        firsts = accumulate((chunk.num_samples for chunk in self.chunks), initial=0)
        row_of = {chunk.seq_id: row for chunk, row in zip(self.chunks, firsts, strict=False)}
        rows = [row_of[chunks[i].seq_id] for i in asking]
        return Fed([bounds[i] for i in asking], rows, self.draws.tokens)

    def read(self, result: StepResult) -> None:
        """Wait for the samples, and add them to ``result``."""
        if self.draws is None:
            return
        drawn = iter(self.draws.read())
        for chunk in self.chunks:
            own = [next(drawn) for _ in range(chunk.num_samples)]
            good = [one for one in own if one is not None]
            if len(good) < len(own):
                result.failures[chunk.seq_id] = _NOT_NUMBERS
            elif good:
                result.samples[chunk.seq_id] = good


class SubmittedStep:
    """``StepUnderWay`` of a ``ModelExecutor``."""

    def __init__(self, result: StepResult, sampled: _Sampled) -> None:
        self._result = result
        self._sampled = sampled

    def collect(self) -> StepResult:
        """See ``StepUnderWay``."""
        self._sampled.read(self._result)
        return self._result


def _sample(chunks: Sequence[Chunk], logits: Tensor, kernels: Kernels) -> _Sampled:
    """Draw what each chunk asks for from its row of ``logits`` [chunks, V]."""
    counts = torch.tensor([chunk.num_samples for chunk in chunks])
    rows = [row for chunk in chunks for row in _sample_rows(chunk)]
    if not rows:
        return _Sampled((), None)
    if len(rows) != len(chunks) or not counts.all():
        sources = torch.arange(len(chunks)).repeat_interleave(counts)
        logits = logits[to_device(sources, logits.device)]
    return _Sampled(chunks, draw(logits, rows, kernels.argmax))


def _find_candidates(chunks: Sequence[Chunk], logits: Tensor, result: StepResult) -> None:
    """The likeliest next tokens for chunks of beams."""
    asking = [i for i, chunk in enumerate(chunks) if chunk.num_candidates]
    if not asking:
        return
    beams = [chunks[i] for i in asking]
    rows = [_sample_row(chunk, chunk.branch) for chunk in beams]
    found = beam_candidates(logits[asking], rows, [chunk.num_candidates for chunk in beams])
    for chunk, candidates in zip(beams, found, strict=True):
        if candidates is None:
            result.failures[chunk.seq_id] = _NOT_NUMBERS
        else:
            result.candidates[chunk.seq_id] = candidates


def _sample_rows(chunk: Chunk) -> Iterator[SampleRow]:
    branches = range(chunk.num_samples) if chunk.num_samples != 1 else (chunk.branch,)
    for branch in branches:
        yield _sample_row(chunk, branch)


def _sample_row(chunk: Chunk, branch: int) -> SampleRow:
    generated = chunk.start + len(chunk.token_ids) - chunk.output_start
    return SampleRow(chunk.request, branch, generated, chunk.history)
