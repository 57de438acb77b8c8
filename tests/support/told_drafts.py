"""A real draft model that computes what it computes, but whose drafts are right where told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.core.protocol import TO_DRAFT, Chunk, Opened, Outcome, Request

Drafts = Callable[[Request, int, int, int], Sequence[int]]
"""A request, a branch, tokens of its output that are known, how many -> drafts."""


class ToldDrafts:
    """passes: what it computes at once, of each step so far."""

    def __init__(
        self, draft_model: Any, drafts: Drafts, told: Callable[[Chunk], Outcome | None]
    ) -> None:
        """told: what becomes of a chunk."""
        self.passes: list[list[Chunk]] = []
        self._drafts, self._told = drafts, told
        self._fill, self._compute = draft_model.fill, draft_model._compute
        self._observe = draft_model.observe
        draft_model.fill, draft_model.observe = self.fill, self.observe
        draft_model._compute = self.compute

    def fill(self, chunks: Sequence[Chunk], known: Sequence[Opened], pasts: Any) -> list[Chunk]:
        filled = self._fill(chunks, known, pasts)
        return [
            self._refilled(chunk, whose, made) if chunk.token_ids[-1] == TO_DRAFT else made
            for chunk, whose, made in zip(chunks, known, filled, strict=True)
        ]

    def _refilled(self, chunk: Chunk, whose: Opened, made: Chunk) -> Chunk:
        assert len(made.token_ids) == len(chunk.token_ids), "all were made"
        num_known = chunk.token_ids.index(TO_DRAFT)
        place = chunk.start + num_known - chunk.output_start
        count = len(chunk.token_ids) - num_known
        drafts = self._drafts(whose.request, whose.branch, place, count)
        return chunk._replace(token_ids=[*chunk.token_ids[:num_known], *drafts])

    def observe(self, chunks: Sequence[Chunk], outcomes: Mapping[int, Outcome]) -> None:
        told = {chunk.seq_id: self._told(chunk) for chunk in chunks}
        self._observe(chunks, {**outcomes, **{s: one for s, one in told.items() if one}})

    def compute(self, chunks: Sequence[Chunk], asked: Sequence[int] = ()) -> Any:
        # Their tokens are lists that go on.
        self.passes.append([one._replace(token_ids=(*one.token_ids,)) for one in chunks])
        return self._compute(chunks, asked)
