"""Beam search as choices over (beam, token, log-probability): no tensors, no memory.

The rules are those of ``transformers``' ``generate(num_beams=…)``, so that the same scores give the
same hypotheses; see also section 4.4 of the PagedAttention paper for what they mean for blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from quire.core.protocol import FinishReason, Request
from quire.core.scheduling import Capability, Extension, Hooks, Hypothesis, Scheduler, Search
from quire.text.params import params_of


class Beams(Capability):
    """Begins a search for each request that asks for one."""

    def engine_begins(self, scheduler: Scheduler, hooks: Hooks) -> None:
        scheduler.begin_search = BeamSearch


class BeamSearch(Search):
    """The scores of one request's live beams, and the best hypotheses that have ended.

    A hypothesis' score is the sum of its log-probabilities / length ** length_penalty.
    """

    def __init__(self, request: Request) -> None:
        params = params_of(request)
        self.width = params.width
        self.finished: list[Hypothesis] = []  # best first, at most ``width``
        self._scores = [0.0]  # of the live beams, best first
        self._max_tokens = request.max_tokens
        self._min_tokens = request.min_tokens
        stops = set(params.stop_token_ids)
        self._stops = stops if params.ignore_eos else stops | request.eos_token_ids
        self._length_penalty = params.length_penalty
        self._early_stopping = params.early_stopping
        # So many that ``width`` can go on after all ends.
        self._num_candidates = max(2, 1 + len(self._stops)) * self.width

    @property
    def num_candidates(self) -> int:
        return self._num_candidates

    def advance(
        self,
        length: int,
        candidates: Sequence[Sequence[tuple[int, float]]],
        output_of: Callable[[int], Sequence[int]],
    ) -> list[Extension]:
        stops = self._stops if length >= self._min_tokens else ()
        at_the_end = length >= self._max_tokens
        live: list[Extension] = []
        for place, choice in enumerate(self._ranked(candidates)):
            if not (at_the_end or choice.token_id in stops):
                live.append(choice)
                if len(live) == self.width:
                    break
            elif place < self.width:
                self._finish(choice, output_of(choice.beam))
        self._scores = [choice.score for choice in live]
        return live if live and self._may_improve(length) else []

    def finish_reason(self, hypothesis: Hypothesis) -> FinishReason:
        token_ids = hypothesis.token_ids
        stopped = token_ids[-1] in self._stops and len(token_ids) >= self._min_tokens
        return FinishReason.STOP if stopped else FinishReason.LENGTH

    def _ranked(self, candidates: Sequence[Sequence[tuple[int, float]]]) -> Iterator[Extension]:
        """The best extensions of all beams; of equal ones, those of the better beam first.

        Each beam's are in order, so that most are not even looked at.
        """
        left = [beam for beam, tokens in enumerate(candidates) if tokens]
        nexts = [0] * len(candidates)
        scores = [self._scores[beam] + candidates[beam][0][1] for beam in left]
        for _ in range(self._num_candidates):
            if not left:
                return
            place = scores.index(max(scores))
            beam = left[place]
            tokens, at = candidates[beam], nexts[beam]
            yield Extension(beam, tokens[at][0], scores[place])
            nexts[beam] = at = at + 1
            if at < len(tokens):
                scores[place] = self._scores[beam] + tokens[at][1]
            else:
                del left[place], scores[place]

    def _finish(self, choice: Extension, output: Sequence[int]) -> None:
        tokens = (*output, choice.token_id)
        score = choice.score / len(tokens) ** self._length_penalty
        self.finished.append(Hypothesis(score, choice.score, tokens))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self.width :]

    def _may_improve(self, length: int) -> bool:
        """Whether a live beam could still beat the worst of enough finished ones."""
        if len(self.finished) < self.width:
            return True
        if self._early_stopping is True:
            return False
        # "never": assume the length that is best for the score. False: the present length, a
        # guess that ends the search sooner and is transformers' default.
        reach = length
        if self._early_stopping == "never" and self._length_penalty > 0.0:
            reach = self._max_tokens
        best: float = self._scores[0] / reach**self._length_penalty
        return best > self.finished[-1].score
