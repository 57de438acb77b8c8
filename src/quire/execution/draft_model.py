"""A smaller model that guesses: its keys and values are further layers of the same blocks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import accumulate

from torch import Tensor

from quire.execution.batch import pack
from quire.execution.forward import Hidden, nothing_sampled
from quire.execution.sampling.past import Past
from quire.execution.sampling.sampler import SampleRow, draw
from quire.execution.worker import Worker
from quire.protocol import TO_DRAFT, Chunk, Opened, Outcome, Readout, Sample, Step

logger = logging.getLogger(__name__)

_MOST_BEHIND = 32  # tokens of a sequence


class _Text:
    """A chunk that ends in drafts that are to be made."""

    def __init__(self, chunk: Chunk, whose: Opened, past: Past | None) -> None:
        known = chunk.token_ids.index(TO_DRAFT)
        self.chunk, self.token_ids = chunk, [*chunk.token_ids[:known]]
        self.num_lacking = len(chunk.token_ids) - known
        self._whose, self._past = whose, past
        if past is not None:
            past.take(chunk.start - chunk.output_start, self.token_ids)

    def row(self) -> SampleRow:
        """By which the target will sample its next token, too."""
        _, request, branch, output_start = self._whose
        known = self.chunk.start + len(self.token_ids) - output_start
        return SampleRow(request, branch, known, self._past)

    def take(self, sample: Sample | None) -> bool:
        """Go on with a draft, if there is one; whether another is to be made."""
        if sample is None:
            return False
        if self._past is not None:
            end = self.chunk.start + len(self.token_ids)
            self._past.take(end - self.chunk.output_start, [sample.token_id])
        self.token_ids.append(sample.token_id)
        self.num_lacking -= 1
        return self.num_lacking > 0

    def last(self) -> Chunk:
        """Its last token alone, to be computed."""
        return _last(self.chunk, self.token_ids)

    def filled(self) -> Chunk:
        """The chunk with as many drafts as there are."""
        assert self.chunk.readout is not None
        readout = Readout(self.chunk.readout.rows - self.num_lacking)
        return self.chunk._replace(token_ids=self.token_ids, readout=readout)


class DraftModel:
    """Makes the drafts that steps leave to it, each as its request would have the token sampled.

    It computes whatever the target computes, so that a block that holds tokens holds them for both;
    but tokens that come one by one are left until there is something else to compute, or until the
    block that they are in may be moved or given away: they are *behind*. So is the last draft of a
    sequence if it was right, which nobody knows before it is verified.

    It never fails: there are fewer drafts, and texts do not depend on them.
    """

    def __init__(self, worker: Worker, vocab_size: int) -> None:
        """vocab_size: the target's. Embeddings may be padded to different sizes."""
        self._worker = worker
        self._vocab_size = vocab_size
        self._behind: dict[int, Chunk] = {}  # by sequence: its last tokens, not yet computed
        self._drafted: set[int] = set()  # sequences that have drafts of ours in this step
        self._failed = False

    def catch_up(self, step: Step) -> None:
        """To be done before a step moves blocks: what is behind is computed now.

        But for sequences that just go on, as long as nothing is moved.
        """
        if not self._behind:
            return
        going_on = {} if step.moves else {chunk.seq_id: chunk for chunk in step.chunks}
        left = [one for one in self._behind.values() if not _goes_on(one, going_on)]
        for chunk in left:
            del self._behind[chunk.seq_id]
        try:
            if left:
                self._compute(left)
        except Exception:
            self._fail()

    def fill(
        self, chunks: Sequence[Chunk], known: Sequence[Opened], pasts: Sequence[Past | None]
    ) -> Sequence[Chunk]:
        """Compute a step's chunks, and put drafts in the places of those that are TO_DRAFT.

        Those that could not be made are left out: the rows before them are verified all the same.
        """
        texts = {
            chunk.seq_id: _Text(chunk, whose, past)
            for chunk, whose, past in zip(chunks, known, pasts, strict=True)
            if chunk.token_ids[-1] == TO_DRAFT
        }
        if not self._failed:
            if not texts and self._may_wait(chunks):
                self._behind |= {chunk.seq_id: self._known(chunk) for chunk in chunks}
                return chunks
            try:
                self._draft(chunks, texts)
            except Exception:
                self._fail()
        if not texts:
            return chunks
        if not self._failed:
            self._drafted = {seq_id for seq_id, text in texts.items() if text.filled().drafts}
        return [
            texts[chunk.seq_id].filled() if chunk.seq_id in texts else chunk for chunk in chunks
        ]

    def observe(self, chunks: Sequence[Chunk], outcomes: Mapping[int, Outcome]) -> None:
        """What came of the chunks that ``fill`` gave."""
        for chunk in chunks if self._drafted else ():
            if chunk.seq_id in self._drafted:
                all_right = len(outcomes[chunk.seq_id].tokens) == len(chunk.drafts) + 1
                if all_right:
                    self._behind[chunk.seq_id] = _last(chunk, chunk.token_ids)
        self._drafted = set()

    def _draft(self, chunks: Sequence[Chunk], texts: Mapping[int, _Text]) -> None:
        parts = [self._known(chunk, texts.get(chunk.seq_id)) for chunk in chunks]
        ends = accumulate(len(part.token_ids) for part in parts)
        asked = [end - 1 for end, part in zip(ends, parts, strict=True) if part.seq_id in texts]
        hidden, going_on = self._compute(parts, asked), list(texts.values())
        while going_on:
            samples = draw(
                self._logits(hidden),
                [text.row() for text in going_on],
                self._worker.kernels.argmax,
                with_logprobs=False,
            ).read()
            both = zip(going_on, samples, strict=True)
            going_on = [text for text, sample in both if text.take(sample)]
            if going_on:
                hidden = self._compute([text.last() for text in going_on], range(len(going_on)))

    def _may_wait(self, chunks: Sequence[Chunk]) -> bool:
        """Whether none of these has more than a token, or too many behind."""
        return all(
            len(chunk.token_ids) == 1
            and (
                chunk.seq_id not in self._behind
                or len(self._behind[chunk.seq_id].token_ids) < _MOST_BEHIND
            )
            for chunk in chunks
        )

    def _known(self, chunk: Chunk, text: _Text | None = None) -> Chunk:
        """What of a chunk is known, and the tokens before it that are behind."""
        token_ids = chunk.token_ids if text is None else text.token_ids
        behind = self._behind.pop(chunk.seq_id, None)
        if behind is None:
            return chunk._replace(token_ids=token_ids)
        return chunk._replace(token_ids=[*behind.token_ids, *token_ids], start=behind.start)

    def _compute(self, chunks: Sequence[Chunk], asked: Sequence[int] = ()) -> Hidden:
        batch = pack(chunks, self._worker.block_size, asked)
        vocab_size = self._worker.model.vocab_size
        if vocab_size < self._vocab_size:
            batch.fields().token_ids.clamp_(max=vocab_size - 1)
        return self._worker.compute(batch, nothing_sampled)

    def _logits(self, hidden: Hidden) -> Tensor:
        logits = self._worker.logits(hidden.asked)
        if logits.shape[1] <= self._vocab_size:
            return logits
        return logits[:, : self._vocab_size].contiguous()

    def _fail(self) -> None:
        logger.warning(
            "the draft model failed and is not asked again: texts go on without drafts of it",
            exc_info=True,
        )
        self._failed = True
        self._behind.clear()


def _last(chunk: Chunk, token_ids: Sequence[int]) -> Chunk:
    start = chunk.start + len(token_ids) - 1
    return chunk._replace(token_ids=[token_ids[-1]], start=start, readout=None)


def _goes_on(behind: Chunk, chunks: Mapping[int, Chunk]) -> bool:
    """Whether a chunk follows directly, and no window has moved on: its keys are still there."""
    chunk = chunks.get(behind.seq_id)
    if chunk is None or chunk.start != behind.start + len(behind.token_ids):
        return False
    if chunk.table is behind.table:  # mostly
        return True
    both = zip(behind.table.kv_groups, chunk.table.kv_groups, strict=True)
    return all(then.num_dropped == now.num_dropped for then, now in both)
