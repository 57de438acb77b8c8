"""Steps of an encoder: whole texts, side by side with others of about their length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from quire.core.protocol import Chunk, Opened, Outcome, Parts, PendingStep, Roster, Step, StepResult
from quire.execution.pooling import finished, outcome
from quire.models.dense import Dense
from quire.models.encoder import EncoderModel, TextBatch
from quire.text.params import Pooling, pooling_params_of

_LEAST_SHARE = 0.85  # of the longest text of a batch that each of its texts has
_SHORT = 8  # tokens by which a text may be shorter, however short the longest is


class EncoderExecutor:
    """An ``Executor`` that has an encoder read texts. Each chunk is whole, and has an outcome.

    Where the calling thread computes, a step is done when ``submit`` returns.
    """

    def __init__(
        self, model: EncoderModel, *, types: bool = False, dense: Sequence[Dense] = ()
    ) -> None:
        """types: whether the model is told which text of a pair a token is of.

        dense: what pooled states pass on their way to a vector.
        """
        self.model = model
        self._types, self._dense = types, dense
        self.parts = Parts()
        self.forget()

    def forget(self) -> None:
        """Forget all texts."""
        self._roster = Roster()

    @torch.inference_mode()
    def submit(self, step: Step) -> PendingStep:
        known = self._roster.follow(step)
        outcomes: dict[int, Outcome] = {}
        for places in alike([len(chunk.token_ids) for chunk in step.chunks]):
            chunks, whose = [step.chunks[i] for i in places], [known[i] for i in places]
            with self.parts["forward"]:
                result = self.model.forward(self._batch(chunks, whose)).cpu()
            with self.parts["sampling"]:
                for chunk, opened, rows in zip(chunks, whose, result, strict=True):
                    outcomes[chunk.seq_id] = self._outcome(chunk, opened, rows)
        return PendingStep(step, lambda: StepResult(outcomes))

    def _batch(self, chunks: Sequence[Chunk], whose: Sequence[Opened]) -> TextBatch:
        """The chunks side by side; without a mask where nothing is padded."""
        lengths, pad = [len(chunk.token_ids) for chunk in chunks], self.model.pad_token_id
        longest = max(lengths)
        rows = [[*chunk.token_ids, *[pad] * (longest - len(chunk.token_ids))] for chunk in chunks]
        columns, ends = torch.arange(longest), torch.tensor(lengths)[:, None]
        present = types = None
        if min(lengths) < longest:
            present = columns < ends
        if self._types:
            seconds = (one.request.second_from for one in whose)
            starts = [longest if second is None else second for second in seconds]
            types = ((columns >= torch.tensor(starts)[:, None]) & (columns < ends)).long()
        return TextBatch(torch.tensor(rows), present, types)

    def _outcome(self, chunk: Chunk, opened: Opened, result: Tensor) -> Outcome:
        """result: the states of a text and what pads it [T, width], or its logits [labels]."""
        if self.model.labels:
            return outcome(result)
        params = pooling_params_of(opened.request)
        assert params is not None, "an encoder generates nothing"
        state = pooled(result[: len(chunk.token_ids)], params.pooling)
        return outcome(finished(state, params, self._dense))


def pooled(states: Tensor, pooling: Pooling | None) -> Tensor:
    """One state [d] of a text's states [n, d]; a mean is float64."""
    if pooling is Pooling.CLS:
        return states[0]
    if pooling is Pooling.MEAN:
        return states.double().mean(0)
    return states.amax(0) if pooling is Pooling.MAX else states[-1]


def alike(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Places of texts that are computed together, the longest first: little of it is padding."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        longest = lengths[batch[0]] if batch else 0
        if batch and lengths[place] < min(longest * _LEAST_SHARE, longest - _SHORT):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
