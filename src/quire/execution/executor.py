"""A Step becomes tokens: moves, one forward pass over the mixed batch, sampling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from quire.execution.batch import build_batch
from quire.execution.kv_cache import KVCache
from quire.execution.sampler import SampleRow, sample, token_logprobs
from quire.kernels.ops import AttentionBackend
from quire.model import Model
from quire.scheduling import Chunk, Sample, Step, StepResult, TokenLogprobs

_PROMPT_LOGPROB_ROWS = 256  # bounds the logits held at once while a prompt is scored


class ModelExecutor:
    """Executes steps with a model and the pool that holds its keys and values."""

    def __init__(self, model: Model, kv_cache: KVCache, attention: AttentionBackend) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._attention = attention

    @torch.inference_mode()
    def execute(self, step: Step) -> StepResult:
        self._kv_cache.move(step.moves)
        if not step.chunks:
            return StepResult({})
        token_ids, batch = build_batch(step.chunks, self._kv_cache.block_size)
        hidden = self._model.forward(token_ids, batch, self._kv_cache.layers, self._attention)
        samples, failures = self._sample(step.chunks, batch.query_starts, hidden)
        prompt_logprobs = dict(self._prompt_logprobs(step.chunks, batch.query_starts, hidden))
        return StepResult(samples, prompt_logprobs, failures)

    def _sample(
        self, chunks: Sequence[Chunk], bounds: Sequence[int], hidden: Tensor
    ) -> tuple[dict[int, list[Sample]], dict[int, str]]:
        """Only rows that are sampled pass the LM head, each once however many samples it gives."""
        ends = zip(chunks, bounds[1:], strict=True)
        sampled = [(chunk, end - 1) for chunk, end in ends if chunk.num_samples]
        if not sampled:
            return {}, {}
        logits = self._model.logits(hidden[torch.tensor([row for _, row in sampled])])
        rows = [row for chunk, _ in sampled for row in _sample_rows(chunk)]
        if len(rows) > len(sampled):
            counts = torch.tensor([chunk.num_samples for chunk, _ in sampled])
            logits = logits.repeat_interleave(counts, dim=0)
        drawn = iter(sample(logits, rows))
        samples, failures = {}, {}
        for chunk, _ in sampled:
            own = [next(drawn) for _ in range(chunk.num_samples)]
            good = [one for one in own if one is not None]
            if len(good) == len(own):
                samples[chunk.seq_id] = good
            else:
                failures[chunk.seq_id] = "the model's logits are not numbers (NaN)"
        return samples, failures

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


def _sample_rows(chunk: Chunk) -> Iterator[SampleRow]:
    generated = chunk.start + len(chunk.token_ids) - len(chunk.request.prompt_token_ids)
    branches = range(chunk.num_samples) if chunk.num_samples > 1 else (chunk.branch,)
    for branch in branches:
        yield SampleRow(chunk.request, branch, generated, chunk.history)
