"""A model that knows nothing, and writes whatever its grammar allows."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from llguidance import LLMatcher, LLTokenizer

import quire
from quire.capabilities.grammar import GrammarCompiler
from quire.http.chats.speech import AUTO, Speech, Tool, ToolChoice, guided
from quire.http.config.server import ServerConfig
from quire.text.begun import Begun
from quire.text.chat_template import ChatTemplate
from quire.text.detokenizer import Detokenizer
from quire.text.dialect import Event, Reply
from quire.text.params import SamplingParams, StructuredOutputs
from quire.text.tokenizer import JsonTokenizer

_DEMO = Path(quire.__file__).parent / "models/demo" / "tokenizer.json"


class Obedient:
    """marks: tokens of its own. ends: those of them that end a text, beside the usual one."""

    def __init__(
        self, template: str, marks: Sequence[str], ends: Collection[str] = (), declared: Any = None
    ) -> None:
        backend = tokenizers.Tokenizer.from_file(str(_DEMO))
        backend.add_special_tokens([tokenizers.AddedToken(one, special=True) for one in marks])
        self._tokenizer = JsonTokenizer(backend, ChatTemplate(template, {}, declared=declared))
        self._size = backend.get_vocab_size()
        self._ends = [0, *(backend.token_to_id(one) for one in ends)]
        self._guide = LLTokenizer(backend.to_str(), n_vocab=self._size, eos_token=self._ends)
        texts = [backend.id_to_token(token) for token in range(self._size)]
        self._ending = np.array(
            [i for i, one in enumerate(texts) if one in marks or set(one) <= set('"}])>\n')]
        )
        self._compiler = GrammarCompiler(self._tokenizer, self._size, frozenset(self._ends))
        self.speech = Speech.of(self._tokenizer, ServerConfig())

    def call(
        self,
        tools: Sequence[Tool],
        choice: ToolChoice,
        seed: int,
        params: SamplingParams | None = None,
        *,
        opening: str = "",
    ) -> tuple[str, Reply, Reply]:
        """A text that it writes when it is asked so: what it says whole, and in pieces."""
        speech, schemas = self.speech, {tool.name: tool.parameters or {} for tool in tools}
        begun = Begun(opening)
        standing = speech.state_after(begun)
        asked = guided(
            speech, params or SamplingParams(), tools, choice, several=True, state=standing
        )
        assert asked.structured_outputs is not None
        if speech.marks is not None:  # either the grammar has the reasoning, or what is before it
            assert (asked.reasoning is None) == speech.reasons_within(opened=standing.reasons)
        source = LLMatcher.grammar_from_lark(str(asked.structured_outputs.grammar))
        matcher = LLMatcher(self._guide, source, log_level=0)
        text = self._write(matcher, asked, random.Random(seed))
        whole, pieces = (speech.parser(schemas, begun) for _ in range(2))
        events = whole.push(text) + whole.finish()
        told: list[Event] = [event for one in text for event in pieces.push(one)]
        return text, Reply.of(events), Reply.of(told + pieces.finish())

    def allows(self, grammar: str, text: str) -> bool:
        matcher = LLMatcher(self._guide, LLMatcher.grammar_from_lark(grammar), log_level=0)
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

    def answers(
        self, asked: StructuredOutputs, seeds: int, *, opening: str = "", most: int | None = None
    ) -> Iterator[tuple[str, Reply]]:
        """Texts that it writes when it is asked so, without tools, and what they say.

        most: tokens of a thought.
        """
        begun = Begun(opening)
        params, matcher = self._asked(asked, begun, most)
        for seed in range(seeds):
            text = self._write(matcher.deep_copy(), params, random.Random(seed))
            yield text, Reply.of(self.speech.parser(None, begun).parse(text))

    def may_answer(self, asked: StructuredOutputs, text: str) -> bool:
        """Whether an answer that is asked for may be this, marks and all."""
        _, matcher = self._asked(asked, Begun(), None)
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())

    def _asked(
        self, asked: StructuredOutputs, begun: Begun, most: int | None
    ) -> tuple[SamplingParams, LLMatcher]:
        params = SamplingParams(structured_outputs=asked, thinking_token_budget=most)
        standing = self.speech.state_after(begun)
        params = guided(self.speech, params, (), AUTO, several=False, state=standing)
        rules = self._compiler.rules(params)
        assert rules is not None and rules.text is not None and rules.thinking is None
        return params, rules.text.deep_copy()

    def _write(self, matcher: LLMatcher, asked: SamplingParams, chance: random.Random) -> str:
        assert not matcher.is_error(), matcher.get_error()
        said = Detokenizer(self._tokenizer, [], True, asked.kept_special_tokens)
        text, count = "", 0
        while not matcher.is_stopped():
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            free = np.unpackbits(mask, bitorder="little")[: self._size]
            ended = free[self._ends].any()
            free[0] = 0
            allowed, ending = free.nonzero()[0], self._ending[free[self._ending] > 0]
            hurry = count > 150 or chance.random() < 0.4
            if ended and ((hurry and chance.random() < 0.6) or not len(allowed)):
                break
            token = int(chance.choice(ending if hurry and len(ending) else allowed))
            if token in self._ends:
                break
            text, count = text + said.push(token), count + 1
            assert matcher.consume_token(token) and count < 2000, text
            assert matcher.rollback(1) and matcher.consume_token(token), "as drafts need it"
        return text + said.flush()
