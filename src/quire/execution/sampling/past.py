"""What choosing a sequence's next token may depend on beside logits: the tokens before it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import cast

from quire.core.protocol import Step
from quire.execution.sampling.guidance import OutputGuide, OutputRules
from quire.text.params import params_of


class TokenCounts:
    """How often each token occurs in a text: two arrays side by side, in no order."""

    def __init__(self) -> None:
        self.token_ids = array("q")  # each once
        self.counts = array("f")
        self._places: dict[int, int] = {}  # of a token in the arrays

    def add(self, token_id: int) -> None:
        place = self._places.setdefault(token_id, len(self.token_ids))
        if place == len(self.token_ids):
            self.token_ids.append(token_id)
            self.counts.append(0.0)
        self.counts[place] += 1.0

    def remove(self, token_id: int) -> None:
        """Remove one occurrence of a token that is there."""
        place = self._places[token_id]
        self.counts[place] -= 1.0
        if not self.counts[place]:
            last = self.token_ids.pop()
            count = self.counts.pop()
            del self._places[token_id]
            if last != token_id:
                self.token_ids[place], self.counts[place] = last, count
                self._places[last] = place

    def copy(self) -> TokenCounts:
        other = TokenCounts()
        other.token_ids, other.counts = self.token_ids[:], self.counts[:]
        other._places = self._places.copy()
        return other


class Past:
    """The output of a sequence, as far as it has been computed, and the tokens of its prompt.

    The output is a fact; counts are derived from it, and go along with it: a token costs the same
    however many came before.

    guide: knows what may come next; None if anything may.
    """

    def __init__(self, prompt: Iterable[int], rules: OutputRules | None = None) -> None:
        """rules: what the output must keep to."""
        self.prompt = array("q", dict.fromkeys(prompt))  # each once; shared with all forks
        self._output = array("I")
        self._counts: TokenCounts | None = None
        self._counted = 0  # tokens of the output, from its beginning
        self._rules = rules
        self.guide = None if rules is None else rules.guide()

    def take(self, start: int, token_ids: Sequence[int]) -> None:
        """Replace the output from its token ``start`` on by these tokens.

        Where ``start`` is negative, the first of them are the prompt's.
        """
        output = self._output
        if len(token_ids) == 1 and start >= 0:  # as nearly always, and it is there or comes next
            if start == len(output):
                output.append(token_ids[0])
                return
            if start == len(output) - 1 and output[start] == token_ids[0]:
                return
        token_ids, start = token_ids[max(0, -start) :], max(0, start)
        if start < len(output):  # what is derived of tokens that are as they were still holds
            known = output[start:].tolist()
            if known == list(token_ids):
                return
            pairs = enumerate(zip(known, token_ids, strict=False))
            same = next(
                (i for i, (old, new) in pairs if old != new), min(len(known), len(token_ids))
            )
            token_ids, start = token_ids[same:], start + same
        if start < self._counted:
            self.counts(start)
        if self.guide is not None and start < len(output):
            self.guide.retreat(start)
        del output[start:]
        output.extend(token_ids)

    def counts(self, length: int) -> TokenCounts:
        """Counts of the first ``length`` tokens of the output; valid until the next call."""
        if self._counts is None:
            self._counts, self._counted = TokenCounts(), 0
        while self._counted < length:
            self._counts.add(self._output[self._counted])
            self._counted += 1
        while self._counted > length:
            self._counted -= 1
            self._counts.remove(self._output[self._counted])
        return self._counts

    def ask(self, lengths: Sequence[int], *, forced: bool = False) -> OutputGuide | None:
        """Have the guide find out what may follow that many tokens; see ``OutputGuide.ask``.

        None: there is no guide, or nothing that it has not been asked before.
        """
        guide = self.guide
        if guide is not None and guide.ask(self._output, lengths, forced=forced):
            return guide
        return None

    def __len__(self) -> int:
        return len(self._output)

    def last(self, length: int) -> int:
        """The last of the first ``length`` tokens of the output, at least 1."""
        return self._output[length - 1]

    def ends_with(self, words: Sequence[int], length: int) -> bool:
        """Whether these are the last of the first ``length`` tokens of the output."""
        start = length - len(words)
        return start >= 0 and self._output[start:length].tolist() == list(words)

    def forget(self) -> None:
        """Drop what is derived. It is made again from the output when it is needed."""
        self._counts, self._counted = None, 0
        if self._rules is not None:
            self.guide = self._rules.guide()

    def fork(self) -> Past:
        """The past of a sequence that is forked from this one."""
        other = Past(())
        other._rules, other.guide = self._rules, None if self.guide is None else self.guide.fork()
        other.prompt, other._output = self.prompt, self._output[:]
        if self._counts is not None:
            other._counts, other._counted = self._counts.copy(), self._counted
        return other


class Pasts:
    """The pasts of living sequences whose parameters look at earlier tokens.

    known: by sequence.
    """

    def __init__(self) -> None:
        self.known: dict[int, Past] = {}

    def follow(self, step: Step) -> None:
        """Take up the sequences that a step opens, forks and closes; called first for each step."""
        known = self.known
        for opened in step.opened:
            known.pop(opened.seq_id, None)
            if params_of(opened.request).needs_history:
                request = opened.request
                rules = cast("OutputRules | None", request.rules)
                token_ids = request.prompt_token_ids
                for span in reversed(request.spans):  # of vectors, which are no tokens
                    token_ids = (*token_ids[: span.start], *token_ids[span.end :])
                past = known[opened.seq_id] = Past(token_ids, rules)
                past.ask([0])  # while its prompt is computed
        for parent, child, _ in step.forked:
            if parent in known:
                known[child] = known[parent].fork()
        for seq_id in step.closed:
            known.pop(seq_id, None)

    def forget(self) -> None:
        """Drop all that is derived."""
        for past in self.known.values():
            past.forget()
