"""A step after its forward pass: its tokens are chosen, and told when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from quire.execution.forward import NOT_FED, Fed, Hidden
from quire.execution.sampler import Draws, SampleRow, beam_candidates, draw, token_logprobs
from quire.execution.transfer import to_device
from quire.kernels.ops import Kernels
from quire.model import Model
from quire.scheduling import IN_FLIGHT, Chunk, StepResult, TokenLogprobs

_NOT_NUMBERS = "the model's logits are not numbers (NaN)"
_PROMPT_LOGPROB_ROWS = 256  # bounds the logits held at once while a prompt is scored


class SubmittedStep:
    """``StepUnderWay`` of a ``ModelExecutor``.

    Where choosing its tokens takes waiting for the forward pass, that is left until the next step
    needs them, or somebody the result.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        hidden: Hidden | None,
        result: StepResult,
        model: Model,
        kernels: Kernels,
        before: SubmittedStep | None,
    ) -> None:
        """hidden: None without chunks. before: whose tokens are IN_FLIGHT in the chunks."""
        self._chunks = chunks
        self._asking = [chunk for chunk in chunks if chunk.num_samples or chunk.num_candidates]
        self._result = result
        self._model = model
        self._kernels = kernels
        self._draws: Draws | None = None
        self._collected = False
        # Only until tokens have been chosen:
        self._hidden, self._before, self._logits = hidden, before, None
        if hidden is not None and self._asking:
            # Only rows that are sampled pass the LM head, each once however many samples it gives.
            self._logits = model.logits(hidden.asked)

    def begin_choosing(self) -> None:
        """Choose the tokens now, if that takes no waiting."""
        if not any(map(_takes_waiting, self._chunks)):
            self.choose()

    @torch.inference_mode()
    def choose(self) -> None:
        """Choose the tokens, if that has not been done, and look at all else that is asked for."""
        hidden, logits = self._hidden, self._logits
        if hidden is None:
            return
        if logits is not None:
            self._sample(logits)
            _find_candidates(self._asking, logits, self._result)
        self._result.prompt_logprobs.update(self._prompt_logprobs(hidden.states))
        self._hidden = self._before = self._logits = None

    def feed(self, chunks: Sequence[Chunk], bounds: Sequence[int]) -> Fed:
        """What the next step's chunks need of it; the tokens of chunk i begin at ``bounds[i]``."""
        asking = [i for i, chunk in enumerate(chunks) if chunk.token_ids[0] == IN_FLIGHT]
        if not asking:
            return NOT_FED
        firsts = accumulate((chunk.num_samples for chunk in self._asking), initial=0)
        row_of = {chunk.seq_id: row for chunk, row in zip(self._asking, firsts, strict=False)}
        rows = [row_of[chunks[i].seq_id] for i in asking]
        return Fed([bounds[i] for i in asking], rows, self._tokens)

    def collect(self) -> StepResult:
        """See ``StepUnderWay``."""
        self.choose()
        if self._draws is not None and not self._collected:
            drawn = iter(self._draws.read())
            for chunk in self._asking:
                own = [next(drawn) for _ in range(chunk.num_samples)]
                good = [one for one in own if one is not None]
                if len(good) < len(own):
                    self._result.failures[chunk.seq_id] = _NOT_NUMBERS
                elif good:
                    self._result.samples[chunk.seq_id] = good
        self._collected = True
        return self._result

    def _tokens(self) -> Tensor:
        self.choose()
        assert self._draws is not None, "a step that another is fed from has sampled"
        return self._draws.tokens

    def _sample(self, logits: Tensor) -> None:
        """Draw what each chunk asks for from its row of ``logits`` [asking, V]."""
        rows = [row for chunk in self._asking for row in self._sample_rows(chunk)]
        if not rows:
            return
        if any(chunk.num_samples != 1 for chunk in self._asking):
            sources = [i for i, chunk in enumerate(self._asking) for _ in range(chunk.num_samples)]
            logits = logits[to_device(torch.tensor(sources), logits.device)]
        self._draws = draw(logits, rows, self._kernels.argmax)

    def _sample_rows(self, chunk: Chunk) -> Iterator[SampleRow]:
        history = chunk.history
        if self._before is not None and _completes_history(chunk):
            before = self._before.collect().samples.get(chunk.seq_id, [])
            history += tuple(sample.token_id for sample in before)
        for branch in range(chunk.num_samples) if chunk.num_samples != 1 else (chunk.branch,):
            yield _sample_row(chunk, branch, history)

    def _prompt_logprobs(self, hidden: Tensor) -> Iterator[tuple[int, list[TokenLogprobs]]]:
        bounds = accumulate((len(chunk.token_ids) for chunk in self._chunks), initial=0)
        for chunk, first in zip(self._chunks, bounds, strict=False):
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


def _takes_waiting(chunk: Chunk) -> bool:
    """Whether choosing its tokens takes a look at what is being computed."""
    params = chunk.request.params
    if params.prompt_logprobs is not None or chunk.num_candidates:
        return True
    if not chunk.num_samples:
        return False
    # How many tokens top_k and top_p keep decides what is launched.
    truncated = not params.greedy and (params.top_k > 0 or params.top_p < 1)
    return truncated or _completes_history(chunk)


def _completes_history(chunk: Chunk) -> bool:
    """Whether its history lacks the token that was unknown when it was planned."""
    return chunk.request.params.needs_history and chunk.token_ids[0] == IN_FLIGHT


def _find_candidates(chunks: Sequence[Chunk], logits: Tensor, result: StepResult) -> None:
    """The likeliest next tokens for chunks of beams."""
    asking = [i for i, chunk in enumerate(chunks) if chunk.num_candidates]
    if not asking:
        return
    beams = [chunks[i] for i in asking]
    rows = [_sample_row(chunk, chunk.branch, chunk.history) for chunk in beams]
    found = beam_candidates(logits[asking], rows, [chunk.num_candidates for chunk in beams])
    for chunk, candidates in zip(beams, found, strict=True):
        if candidates is None:
            result.failures[chunk.seq_id] = _NOT_NUMBERS
        else:
            result.candidates[chunk.seq_id] = candidates


def _sample_row(chunk: Chunk, branch: int, history: tuple[int, ...]) -> SampleRow:
    generated = chunk.start + len(chunk.token_ids) - chunk.output_start
    return SampleRow(chunk.request, branch, generated, history)
