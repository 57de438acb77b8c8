"""Where an output stands in the text that it must become, and which tokens may come next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from quire.capabilities.grammar.vocabulary import GrammarVocabulary

Bits = NDArray[np.uint32]


class MaskRow(NamedTuple):
    """A mask that is to be written: a bit for each token, the lowest first, and where it begins."""

    bits: Bits  # [words]
    address: int

    @classmethod
    def each_of(cls, table: Bits) -> list[MaskRow]:
        """The rows of a table [N, words], which outlives them."""
        first, size = table.ctypes.data, table.strides[0]
        return [cls(bits, first + i * size) for i, bits in enumerate(table)]


class Thinking(NamedTuple):
    """How an output may reason before its text begins, in tokens."""

    start: tuple[int, ...]  # empty: it has begun with the prompt's end, or may not begin
    end: tuple[int, ...]
    open: bool
    budget: int | None  # tokens of reasoning, after which the end is written for it

    @property
    def num_opening(self) -> int:
        """Tokens of the output before what is reasoning."""
        return 0 if self.open else len(self.start)


class Rules(NamedTuple):
    """What is the same for all outputs of a request."""

    text: LLMatcher | None  # at the beginning of the text; it is copied, never moved
    thinking: Thinking | None
    ends: frozenset[int]  # tokens that end an output
    anew: Callable[[], LLMatcher | None] = lambda: None  # the text's, which no other request has
    vocabulary: GrammarVocabulary | None = None  # where there is a text

    def guide(self) -> Guide:
        """A guide for one more output, at its beginning."""
        return Guide(self)


class May(Enum):
    """What may come next, where it is no single token."""

    NOTHING = "nothing"
    ANYTHING = "anything"
    GO_ON = "anything but an end"
    MATCH = "what the grammar allows"
    MATCH_OR_THINK = "that, or the beginning of reasoning"


class Guide:
    """Stands after some tokens of one output. Derived from them: it can be made again any time."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.matcher: LLMatcher | None = None
        self._length = 0  # tokens after which it stands
        self._begun: int | None = None  # where the text begins, once that is known
        self._matched = 0  # tokens that the matcher has taken
        self._stuck: int | None = None  # the length at which a token came that may not
        self._alone = False  # whether no other request has what the matcher is a copy of
        self._restart()

    def fork(self) -> Guide:
        """Another one that stands at the same place."""
        other = Guide(self.rules)
        other.matcher = None if self.matcher is None else self.matcher.deep_copy()
        other._length, other._begun = self._length, self._begun
        other._matched, other._stuck = self._matched, self._stuck
        other._alone = self._alone
        return other

    def follow(self, output: Sequence[int], length: int) -> None:
        """Go to the place after ``length`` tokens of ``output``; known ones are unchanged."""
        if length < self._length:
            self.retreat(length)
        while self._length < length:
            self._length += 1
            self._advance(output)

    def retreat(self, length: int) -> None:
        """Stand after no more than ``length`` tokens: those beyond are not as they were known."""
        if length >= self._length:
            return
        if self._stuck is not None and length < self._stuck:
            self._stuck = None
        if self._begun is None or length < self._begun or self._undecided_at(length):
            self._restart()
            return
        self._length = length
        surplus = self._matched - (length - self._begun)
        if surplus > 0:
            matcher = self.text()
            if matcher.rollback(surplus) and not matcher.is_error():
                self._matched -= surplus
            else:  # as with ``stop`` in its rules, or after a draft that was too complex
                self.matcher, self._matched, self._length = None, 0, self._begun

    def next(self) -> int | May:
        """The token that must come next, or what may."""
        thinking = self.rules.thinking
        if self._stuck is not None:
            return May.NOTHING  # after a draft that is wrong, nobody asks; else it has failed
        if self._begun is not None:
            return May.ANYTHING if self.rules.text is None else May.MATCH
        assert thinking is not None
        if self._undecided:
            return May.ANYTHING if self.rules.text is None else May.MATCH_OR_THINK
        if thinking.budget is not None:
            beyond = self._length - thinking.num_opening - thinking.budget
            if 0 <= beyond < len(thinking.end):
                return thinking.end[beyond]
        return May.GO_ON

    def forced(self, output: Sequence[int]) -> list[int]:
        """The tokens that come next, if there is one way to go on; as they are mostly written."""
        then, thinking = self.next(), self.rules.thinking
        if isinstance(then, int):
            assert thinking is not None and thinking.budget is not None
            return list(thinking.end[self._length - thinking.num_opening - thinking.budget :])
        return self._forced(output) if then is May.MATCH else []

    def fill_mask(self, row: MaskRow, output: Sequence[int], length: int) -> None:
        """Write into a row whether each token may follow the first ``length`` of ``output``.

        Other threads run meanwhile.
        """
        self.follow(output, length)
        then, bits = self.next(), row.bits
        if then is not May.MATCH and then is not May.MATCH_OR_THINK:
            _fill(bits, then, self.rules.ends)
            return
        matcher = self.text()
        if then is May.MATCH and (forced := self._forced(output)):
            bits[:] = 0
            _allow(bits, forced[:1])
        else:
            matcher.unsafe_compute_mask_ptr(row.address, bits.nbytes)
        if matcher.is_error():
            if self.renewed(output):
                self.text().unsafe_compute_mask_ptr(row.address, bits.nbytes)
            if self.failure is not None:
                bits[:] = 0
                return
        if then is May.MATCH_OR_THINK:
            assert self.rules.thinking is not None
            _allow(bits, self.rules.thinking.start[:1])

    @staticmethod
    def fill_masks(places: Sequence[tuple[Guide, Sequence[int], int]], vocab_size: int) -> Bits:
        """``fill_mask`` of each place, one after the other: [N, words].

        places: a guide, its output, and after how many tokens of it the guide is asked.
        """
        bits = np.empty((len(places), -(-vocab_size // 32)), dtype=np.uint32)
        for row, (guide, output, length) in zip(MaskRow.each_of(bits), places, strict=True):
            guide.fill_mask(row, output, length)
        return bits

    @property
    def failure(self) -> str | None:
        """Why nothing can follow, if so."""
        if self.matcher is not None and self.matcher.is_error():
            return f"the grammar has become too complex: {self.matcher.get_error()[:200]}"
        return None if self._stuck is None else "the text does not follow its grammar"

    def renewed(self, output: Sequence[int]) -> bool:
        """Whether another matcher goes on, because the states that others made were too many.

        Copies share them. What other requests have written may not decide what this one can.
        """
        if self._alone or self.matcher is None or not self.matcher.is_error():
            return False
        if self.rules.anew() is None:
            return False
        self.matcher, self._alone = None, True
        assert self._begun is not None
        for token in output[self._begun : self._begun + self._matched]:
            self.text().consume_token(token)
        return True

    def text(self) -> LLMatcher:
        """The matcher, after what there is of the text."""
        if self.matcher is None:
            beginning = self.rules.anew() if self._alone else self.rules.text
            assert beginning is not None
            self.matcher = beginning.deep_copy()
        return self.matcher

    def _forced(self, output: Sequence[int]) -> list[int]:
        """The forced tokens where the grammar alone says what may come."""
        text = self.text().compute_ff_bytes()
        if not text or self.rules.vocabulary is None:
            return []
        after = output[self._length - 1] if self._matched else None
        return self.rules.vocabulary.tokens(text, after)

    @property
    def _undecided(self) -> bool:
        """Whether the output may still begin to reason."""
        return self._undecided_at(self._length)

    def _restart(self) -> None:
        thinking = self.rules.thinking
        reasons = thinking is not None and (thinking.open or bool(thinking.start))
        self._length = self._matched = 0
        self._begun = None if reasons else 0
        self._stuck = self.matcher = None

    def _advance(self, output: Sequence[int]) -> None:
        """Take in the token before the guide's new place."""
        length = self._length
        if self._stuck is not None:
            return
        if self._begun is None:
            self._think(output)
        if self._begun is not None and length > self._begun and self.rules.text is not None:
            if self._takes(output[length - 1]) or (
                self.renewed(output) and self._takes(output[length - 1])
            ):
                self._matched += 1
            else:
                self._stuck = length

    def _takes(self, token: int) -> bool:
        matcher = self.text()
        return not matcher.is_stopped() and bool(matcher.try_consume_tokens([token]))

    def _think(self, output: Sequence[int]) -> None:
        """See whether the text has begun, before or after the last token."""
        thinking, length = self.rules.thinking, self._length
        assert thinking is not None
        known = min(length, thinking.num_opening)
        if tuple(output[:known]) != thinking.start[:known]:
            self._begun = 0  # there is no reasoning
            return
        first = length - len(thinking.end)
        if first >= known and tuple(output[first:length]) == thinking.end:
            self._begun = length
        elif self.rules.vocabulary is not None:
            mark = self.rules.vocabulary.text(thinking.end)
            last = output[max(known, length - len(mark)) : length]
            self._look_for(mark, self.rules.vocabulary.text(last))

    def _look_for(self, mark: bytes, text: bytes) -> None:
        """See whether a text has just come to the reasoning's end, with whatever tokens.

        Who reads it takes that for the end. What the last token has beyond the mark is lost to the
        grammar, and so must be white space.
        """
        _, found, beyond = text.partition(mark)
        if found and not beyond.strip():
            self._begun = self._length
        elif found:
            self._stuck = self._length

    def _undecided_at(self, length: int) -> bool:
        thinking = self.rules.thinking
        return thinking is not None and length < thinking.num_opening


def _fill(bits: Bits, then: int | May, ends: Iterable[int]) -> None:
    """Write the mask of what may come next where no grammar decides it."""
    bits[:] = 0xFFFFFFFF if then is May.ANYTHING or then is May.GO_ON else 0
    if isinstance(then, int):
        _allow(bits, (then,))
    for token in ends if then is May.GO_ON else ():
        bits[token // 32] &= ~np.uint32(1 << token % 32)


def _allow(bits: Bits, tokens: Iterable[int]) -> None:
    for token in tokens:
        bits[token // 32] |= np.uint32(1 << token % 32)
