"""Prompts become vectors: the last token's state, the first one's, the mean or the most of all."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from quire.core.protocol import Chunk, Opened, Outcome
from quire.execution.forward import Hidden, Worker
from quire.models.dense import Dense
from quire.text.params import Pooling, PoolingParams, pooling_params_of

_NOT_NUMBERS = "the model's states are not numbers (NaN)"
_AT_ONCE = 256  # rows; bounds the logits held at once where tokens are scored


class Pools:
    """What is known of prompts that are pooled while they are computed, chunk by chunk.

    Unlike what else is kept of a sequence it cannot be made again from its tokens alone: it goes
    with their blocks. Where those are lost the prompt is computed anew from its beginning.

    dense: what pooled states pass on their way to a vector.
    kept: by sequence [d]; sums in float64.
    """

    dense: Sequence[Dense] = ()

    def __init__(self) -> None:
        self.kept: dict[int, Tensor] = {}

    def forget(self) -> None:
        """Forget all sequences."""
        self.kept.clear()

    def drop(self, closed: Iterable[int]) -> None:
        """Forget sequences that a step closes, once the tokens of the step before are chosen."""
        for seq_id in closed:
            self.kept.pop(seq_id, None)

    def outcomes(
        self, chunks: Sequence[Chunk], known: Sequence[Opened], hidden: Hidden, worker: Worker
    ) -> Iterator[tuple[int, Outcome]]:
        """Outcomes of the chunks that end a prompt which is pooled."""
        first, scored, states = 0, [], hidden.states
        for chunk, whose in zip(chunks, known, strict=True):
            end, params = first + len(chunk.token_ids), pooling_params_of(whose.request)
            if params is not None and params.token_ids:
                if chunk.readout is not None:
                    scored.append((chunk.seq_id, end - 1, params.token_ids))
            elif params is not None:
                state = self._pooled(chunk, params, states[first:end])
                if chunk.readout is not None:
                    self.kept.pop(chunk.seq_id, None)
                    yield chunk.seq_id, outcome(finished(state, params, self.dense))
            first = end
        for start in range(0, len(scored), _AT_ONCE):
            part = scored[start : start + _AT_ONCE]
            rows = [row for _, row, _ in part]
            logits = worker.logits(states[rows], hidden.heads(rows))
            for (seq_id, _, token_ids), row in zip(part, logits, strict=True):
                yield seq_id, outcome(row[list(token_ids)])

    def _pooled(self, chunk: Chunk, params: PoolingParams, states: Tensor) -> Tensor:
        """The pooled state [d] of the prompt as far as it is computed."""
        if params.pooling is Pooling.LAST:
            return states[-1]
        if params.pooling is Pooling.CLS:
            if chunk.start == 0:
                self.kept[chunk.seq_id] = states[0].clone()
            return self.kept[chunk.seq_id]
        if params.pooling is Pooling.MAX:
            most = states.amax(0)
            if chunk.start:
                most = torch.maximum(self.kept[chunk.seq_id], most)
            self.kept[chunk.seq_id] = most
            return most
        # One state is added after the other, so that no bit depends on where chunks are cut: in
        # main memory, where a running sum is one.
        rows = states.double().cpu()
        if chunk.start:
            rows = torch.cat([self.kept[chunk.seq_id][None], rows])
        total = self.kept[chunk.seq_id] = rows.cumsum(0)[-1].clone()
        return total / (chunk.start + len(chunk.token_ids))


def finished(state: Tensor, params: PoolingParams, dense: Sequence[Dense] = ()) -> Tensor:
    """A pooled state [d] as a vector: through ``dense``, cut and normalised, if that is wanted."""
    vector = state.double().cpu()
    for layer in dense:
        vector = layer(vector)
    vector = vector[: params.dimensions]
    return vector / vector.norm().clamp(min=1e-12) if params.normalize else vector


def outcome(vector: Tensor) -> Outcome:
    """The outcome of a vector: a failure if its numbers are not finite."""
    numbers = vector.float().cpu()
    if not numbers.isfinite().all():
        return Outcome(failure=_NOT_NUMBERS)
    return Outcome(vector=array("f", numbers.numpy().tobytes()))
