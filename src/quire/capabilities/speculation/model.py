"""A smaller model that guesses: its keys and values are further layers of the same blocks."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from itertools import accumulate, takewhile

from torch import Tensor

from quire.capabilities.speculation.behind import Behind
from quire.core.memory import BlockTable
from quire.core.protocol import (
    TO_DRAFT,
    Chunk,
    Opened,
    Outcome,
    Readout,
    Sample,
    Step,
)
from quire.execution.batch import pack, pack_texts
from quire.execution.forward import Hidden, Worker, nothing_sampled
from quire.execution.sampling.guidance import PATIENCE, wait_for
from quire.execution.sampling.past import Past
from quire.execution.sampling.sampler import SampleRow, draw
from quire.kernels.layer_memory import StateShape
from quire.text.params import params_of

logger = logging.getLogger(__name__)


class _DraftText:
    """A chunk that ends in drafts that are to be made."""

    def __init__(self, chunk: Chunk, whose: Opened, past: Past | None) -> None:
        known = chunk.token_ids.index(TO_DRAFT)
        self.chunk, self.token_ids = chunk, [*chunk.token_ids[:known]]
        self.num_lacking = len(chunk.token_ids) - known
        self._whose, self._past = whose, past
        if past is not None:
            past.take(chunk.start - chunk.output_start, self.token_ids)

    @property
    def is_plain(self) -> bool:
        """Whether its tokens are the likeliest, with nothing beside."""
        params = params_of(self._whose.request)
        return params.greedy and not params.edits_logits and not self.chunk.cuts

    def row(self) -> SampleRow:
        """The row by which the target will sample its next token too."""
        _, request, branch, output_start = self._whose
        known = self.chunk.start + len(self.token_ids) - output_start
        if self._past is not None and self._past.guide is not None:
            self._past.ask([known])
            wait_for([self._past.guide], PATIENCE)
        return SampleRow(request, params_of(request), branch, known, self._past)

    def take(self, sample: Sample | None) -> bool:
        """Add a draft, if there is one; whether another is to be made."""
        if sample is None:
            return False
        if self._past is not None:
            end = self.chunk.start + len(self.token_ids)
            self._past.take(end - self.chunk.output_start, [sample.token_id])
        self.token_ids.append(sample.token_id)
        self.num_lacking -= 1
        return self.num_lacking > 0

    def filled(self) -> Chunk:
        """The chunk with as many drafts as there are."""
        assert self.chunk.readout is not None
        readout = Readout(self.chunk.readout.rows - self.num_lacking)
        return self.chunk._replace(token_ids=self.token_ids, readout=readout)


class DraftModel:
    """Makes the drafts that steps leave to it, each as its request would have the token sampled.

    It computes whatever the target computes; when, ``Behind`` tells.

    It never fails: there are fewer drafts, and texts do not depend on them.
    """

    def __init__(self, worker: Worker, vocab_size: int) -> None:
        """vocab_size: the target's. Embeddings may be padded to different sizes."""
        self._worker = worker
        self._vocab_size = vocab_size
        self._keeps_states = any(isinstance(one, StateShape) for one in worker.model.kv_shapes)
        self.forget()
        self._failed = False

    def forget(self) -> None:
        """No sequence lives any more that steps have told of."""
        self._behind = Behind(keeps_states=self._keeps_states)
        self._drafted: set[int] = set()  # sequences with drafts that we have yet to compute

    def catch_up(self, step: Step) -> None:
        """Compute what was put off; called before a step moves blocks."""
        due = self._behind.before_moves(step)
        try:
            if due:
                self._compute(due)
        except Exception:
            self._fail()

    def fill(
        self, chunks: Sequence[Chunk], known: Sequence[Opened], pasts: Mapping[int, Past]
    ) -> Sequence[Chunk]:
        """Compute a step's chunks, and put drafts in the places of those that are TO_DRAFT.

        Those that could not be made are left out: the rows before them are verified all the same.
        """
        texts = {
            chunk.seq_id: _DraftText(chunk, whose, pasts.get(chunk.seq_id))
            for chunk, whose in zip(chunks, known, strict=True)
            if chunk.token_ids[-1] == TO_DRAFT
        }
        if not self._failed:
            try:
                if texts or not self._behind.leave(chunks):
                    self._draft(chunks, texts)
            except Exception:
                self._fail()
        if texts:
            filled = {seq_id: text.filled() for seq_id, text in texts.items()}
            chunks = [filled.get(chunk.seq_id, chunk) for chunk in chunks]
        if not self._failed and (texts or self._keeps_states):
            ours = (one for one in chunks if self._keeps_states or one.seq_id in texts)
            self._drafted = {chunk.seq_id for chunk in ours if chunk.drafts}
        return chunks

    def observe(self, chunks: Sequence[Chunk], outcomes: Mapping[int, Outcome]) -> None:
        """Learn what came of the chunks that ``fill`` gave.

        Where states are kept, drafts that others made are computed no earlier than this.
        """
        for chunk in chunks if self._drafted else ():
            if chunk.seq_id in self._drafted:
                self._behind.verified(chunk, len(outcomes[chunk.seq_id].tokens))
        self._drafted = set()

    def _draft(self, chunks: Sequence[Chunk], texts: Mapping[int, _DraftText]) -> None:
        parts = [self._behind.take(chunk) for chunk in chunks]
        going_on = [texts[part.seq_id] for part in parts if part.seq_id in texts]
        alone = len(going_on) == len(parts) and all(text.is_plain for text in going_on)
        if alone and self._go_on(going_on, parts):
            return
        hidden = self._compute(parts, _last_rows(parts, texts))
        while going_on:
            samples = draw(
                self._logits(hidden),
                [text.row() for text in going_on],
                self._worker.kernels,
                with_logprobs=False,
            ).read()
            both = zip(going_on, samples, strict=True)
            going_on = [text for text, sample in both if text.take(sample)]
            plain = [text for text in going_on if text.is_plain]
            if self._go_on(plain, self._further(plain)):
                going_on = [text for text in going_on if not text.is_plain]
            if going_on:
                parts = self._further(going_on)
                hidden = self._compute(parts, _last_rows(parts, texts))

    def _further(self, texts: Sequence[_DraftText]) -> list[Chunk]:
        """The chunks to compute for the next draft of each text."""
        return [self._behind.further(text.chunk, text.token_ids) for text in texts]

    def _go_on(self, texts: Sequence[_DraftText], parts: Sequence[Chunk]) -> bool:
        """Have the model compute these parts of texts and go on by itself, if it can."""
        if not texts:
            return False
        both = sorted(zip(texts, parts, strict=True), key=lambda one: -one[0].num_lacking)
        counts = [text.num_lacking for text, _ in both]
        known = [part for _, part in both]
        batch = pack_texts(self._readable(known), counts, self._worker.block_size)
        tokens = self._worker.go_on(batch, self._vocab_size)
        if tokens is None:
            return False
        for (text, _), count, found in zip(both, counts, tokens.T.tolist(), strict=True):
            for token in takewhile(lambda one: one >= 0, found[:count]):
                text.take(Sample(token))
        return True

    def _compute(self, chunks: Sequence[Chunk], asked: Sequence[int] = ()) -> Hidden:
        batch = pack(self._readable(chunks), self._worker.block_size, asked)
        return self._worker.compute(batch, nothing_sampled)

    def _readable(self, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
        """The chunks, with tokens outside the draft model's vocabulary replaced by its last one."""
        if chunks and chunks[0].table.kv_groups[-1].keeps_state:
            chunks = [one._replace(table=self._own(one.table)) for one in chunks]
        last = self._worker.model.vocab_size - 1
        if last >= self._vocab_size - 1:
            return chunks
        return [
            one._replace(token_ids=[min(token, last) for token in one.token_ids]) for one in chunks
        ]

    def _own(self, table: BlockTable) -> BlockTable:
        """Where states are kept: without the slot, if its layers keep none. What the target's have
        yet to see is no concern of theirs.
        """
        if not self._keeps_states:
            return table._replace(further=table.further[:-1])
        if not table.further:
            return table._replace(confirmed=0)
        *paged, slot = table.further
        return table._replace(further=(*paged, slot._replace(confirmed=0)))

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


def _last_rows(parts: Sequence[Chunk], texts: Container[int]) -> list[int]:
    """Rows of the last tokens of those parts whose sequences are among ``texts``."""
    ends = accumulate(len(part.token_ids) for part in parts)
    return [end - 1 for end, part in zip(ends, parts, strict=True) if part.seq_id in texts]
