"""The demonstration model's tokens, and models that speak a dialect with them."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from quire.capabilities.grammar import GrammarCompiler
from quire.http.chats.speech import Speech
from quire.http.config.server import ServerConfig
from quire.text.chat_template import ChatTemplate
from quire.text.dialect import DIALECTS, REASONING
from quire.text.tokenizer import JsonTokenizer
from support.grammars import END, demo

_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
_CLOSING = set('"}])>\n<|/')


class Model(NamedTuple):
    """Made once, before there are children.

    size: of its vocabulary.
    closing: tokens with which texts come to an end.
    """

    tokenizer: JsonTokenizer
    compiler: GrammarCompiler
    speech: Speech
    size: int
    ends: frozenset[int]
    closing: frozenset[int]

    def alone(self) -> GrammarCompiler:
        """Another compiler, whose grammars share states with nobody's."""
        return GrammarCompiler(self.tokenizer, self.size, self.ends)


@cache
def model(dialect: str = "", reasoning: str = "") -> Model:
    backend = demo()
    marks = DIALECTS[dialect].marks if dialect else ()
    if reasoning:
        marks = (*marks, REASONING[reasoning].start, REASONING[reasoning].end)
    backend.add_special_tokens(list(dict.fromkeys(marks)))
    tokenizer = JsonTokenizer(backend, ChatTemplate(_TEMPLATE, {}))
    size, ends = backend.get_vocab_size(), frozenset({END})
    config = ServerConfig(tool_call_parser=dialect or None, reasoning_parser=reasoning or None)
    compiler = GrammarCompiler(tokenizer, size, ends)
    compiler.warm_up()
    texts = [backend.id_to_token(token) for token in range(size)]
    closing = {token for token, text in enumerate(texts) if text in marks or set(text) <= _CLOSING}
    speech = Speech.of(tokenizer, config)
    return Model(tokenizer, compiler, speech, size, ends, frozenset(closing))
