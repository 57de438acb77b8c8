"""Compiling what is asked of texts: bounded in size, kept for the next who asks the same."""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import cache, partial
from typing import NamedTuple

from llguidance import LLMatcher, LLParserLimits

from quire.capabilities.grammar.foreign import in_own_words
from quire.capabilities.grammar.guide import Rules, Thinking
from quire.capabilities.grammar.source import grammar_source
from quire.capabilities.grammar.vocabulary import GrammarTokenizer, GrammarVocabulary
from quire.core.errors import RequestError
from quire.text.params import Reasoning, SamplingParams, StructuredOutputs

_FIELD = "structured_outputs"
_MOST_KEPT = 128 << 20  # bytes of compiled grammars, by what they are taken to have
_BYTES_A_CHARACTER = 64
_BYTES_A_FUEL = 200  # what is counted in a short expression can take as much as there is fuel
_FUELS = (10_000, 30_000, 100_000)  # each is tried if the one before was too little
_LONGEST_ANEW = 8_192  # characters


class Asked(NamedTuple):
    """What a text must be, and the order of an output's parts in which it stands, or ""."""

    text: StructuredOutputs
    order: str


class Source(NamedTuple):
    """The text of a grammar for llguidance, and the fuel that compiling it takes."""

    text: str
    fuel: int


class Form(NamedTuple):
    """What outputs must be: a text, bounded reasoning, or both. source: of the text, if known."""

    asked: Asked | None
    thinking: Thinking | None
    source: Source | None = None


def asked_of(params: SamplingParams) -> Asked | None:
    """What the text must be; None: it is free."""
    if params.structured_outputs is None:
        return None
    return Asked(params.structured_outputs, params.reasoning.order if params.reasoning else "")


def form_of(params: SamplingParams, tokenizer: GrammarTokenizer) -> Form | None:
    """What outputs must be; None: they are free. RequestError where it cannot be enforced."""
    budget, marks, asked = params.thinking_token_budget, params.reasoning, asked_of(params)
    if budget is not None and marks is None:
        raise RequestError(
            "thinking_token_budget needs the marks of the model's reasoning, which only chats know",
            "thinking_token_budget",
        )
    if asked is None and budget is None:
        return None
    thinking = None
    if marks is not None and not (asked and asked.order):
        thinking = _thinking(tokenizer, marks, budget, single=asked is not None)
    return Form(asked, thinking)


def _thinking(
    tokenizer: GrammarTokenizer, marks: Reasoning, budget: int | None, *, single: bool
) -> Thinking:
    def encode(mark: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(mark, add_special_tokens=False))

    start = () if marks.open else encode(marks.start)
    if single and len(start) > 1:
        start = ()  # a grammar would have to go along with each of its parts
    return Thinking(start, encode(marks.end), marks.open, budget)


class _Kept(NamedTuple):
    """What has been compiled."""

    source: Source
    matcher: LLMatcher
    num_bytes: int  # that it is taken to have


class GrammarCompiler:
    """Makes the rules for the outputs of a model. Any thread may call it.

    tokenizer: its words are read when the first grammar is compiled, which takes a while where they
        are many.
    ends: tokens that end a text.
    additional_properties: objects have others than their schema names, where that leaves it open.
    """

    def __init__(
        self,
        tokenizer: GrammarTokenizer,
        vocab_size: int,
        ends: frozenset[int],
        *,
        additional_properties: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size, self._ends = vocab_size, ends
        self._additional_properties = additional_properties
        self._lock = threading.Lock()  # of the vocabulary
        self._vocabulary: GrammarVocabulary | None = None
        self._kept_lock = threading.Lock()
        self._kept: OrderedDict[Asked, _Kept] = OrderedDict()
        self._num_bytes = 0

    def warm_up(self) -> None:
        """Read the tokenizer's words now; RequestError: that cannot be."""
        self._words()

    def rules(self, params: SamplingParams) -> Rules | None:
        """What guides outputs of a request; None if anything may be written.

        RequestError, naming the field, where there is no text that fits, or no way to see to it.
        """
        form = form_of(params, self._tokenizer)
        return None if form is None else self.rules_of(form)

    def rules_of(self, form: Form) -> Rules:
        asked, thinking, source = form
        if asked is None:
            return Rules(None, thinking, self._ends)
        text, anew = self._compiled(asked, source).matcher, cache(partial(self._anew, form))
        return Rules(text, thinking, self._ends, anew, self._words())

    def _anew(self, form: Form) -> LLMatcher | None:
        """A new matcher, compiled between two steps; None where that would take long."""
        asked, _, source = form
        assert asked is not None
        return None if asked.text.size > _LONGEST_ANEW else self._compile(asked, source).matcher

    def source(self, asked: Asked) -> Source:
        """A grammar's source, compiled now unless it is known; RequestError as for ``rules``."""
        return self._compiled(asked, None).source

    def _compiled(self, asked: Asked, source: Source | None) -> _Kept:
        """A compiled grammar. Its matcher is shared: it stays at the beginning of a text."""
        with self._kept_lock:
            kept = self._kept.get(asked)
            if kept is not None:
                self._kept.move_to_end(asked)
        if kept is not None and not _is_spent(kept.matcher):
            return kept
        new = self._compile(asked, source)
        with self._kept_lock:
            old = self._kept.pop(asked, None)
            self._kept[asked] = new
            self._num_bytes += new.num_bytes - (0 if old is None else old.num_bytes)
            while self._num_bytes > _MOST_KEPT:
                _, oldest = self._kept.popitem(last=False)
                self._num_bytes -= oldest.num_bytes
        return new

    def _compile(self, asked: Asked, source: Source | None) -> _Kept:
        vocabulary, least = self._words(), 0
        if source is not None:
            text, least = source
        else:
            text = grammar_source(
                asked.text,
                vocabulary.token_id,
                _limits(_FUELS[-1]),
                asked.order,
                additional_properties=self._additional_properties,
            )
        for fuel in (one for one in _FUELS if one >= least):
            matcher = LLMatcher(vocabulary.words, text, log_level=0, limits=_limits(fuel))
            if not matcher.is_error():
                matcher.compute_bitmask()  # what it finds out is kept for all copies
            if not matcher.is_error():
                num_bytes = fuel * _BYTES_A_FUEL + asked.text.size * _BYTES_A_CHARACTER
                return _Kept(Source(text, fuel), matcher, num_bytes + len(text))
        why = in_own_words(matcher.get_error().removesuffix("<non-verbose/>"))
        if why.startswith("NoExtension"):
            why = "there is no text that it allows"
        raise RequestError(f"{_FIELD}: {why}", _FIELD)

    def _words(self) -> GrammarVocabulary:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = GrammarVocabulary(self._tokenizer, self._vocab_size, self._ends)
            return self._vocabulary


def _limits(initial_fuel: int) -> LLParserLimits:
    return LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=initial_fuel,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def _is_spent(matcher: LLMatcher) -> bool:
    """Whether a matcher has made all the states that it may; its copies share them."""
    copy = matcher.deep_copy()
    copy.compute_bitmask()
    return copy.is_error()
