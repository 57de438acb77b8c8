"""The demonstration model's tokens, and whether its grammars allow a text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import tokenizers

import quire
from quire.capabilities.grammar import GrammarCompiler, Guide, Rules
from quire.text.params import SamplingParams, StructuredOutputs

END = 0
_FILE = Path(quire.__file__).parent / "models/demo" / "tokenizer.json"


class Words:
    """A tokenizer of the library's, or one that is none."""

    def __init__(self, backend: tokenizers.Tokenizer, *, readable: bool = True) -> None:
        self._backend, self._readable = backend, readable
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(id for id, token in added.items() if token.special)

    def to_json(self) -> str | None:
        return str(self._backend.to_str()) if self._readable else None

    def token_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids


def demo() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(_FILE))


@cache
def backend() -> tokenizers.Tokenizer:
    return demo()


@cache
def compiler() -> GrammarCompiler:
    size = backend().get_vocab_size()
    return GrammarCompiler(Words(backend()), size, frozenset({END}), additional_properties=True)


def compiled(made: GrammarCompiler | None = None, **asked: object) -> Rules:
    """RequestError where it cannot be."""
    params = SamplingParams(structured_outputs=StructuredOutputs.of(asked))
    rules = (made or compiler()).rules(params)
    assert rules is not None and rules.text is not None
    return rules


def tokens_of(text: str) -> list[int]:
    """None of which is special, whatever the text looks like."""
    ids: list[int] = _plain().encode(text, add_special_tokens=False).ids
    return ids


@cache
def _plain() -> tokenizers.Tokenizer:
    plain = demo()
    plain.encode_special_tokens = True
    return plain


def allows(rules: Rules, text: str) -> bool:
    """Whether a text may be written, whole, by the tokens that it mostly has."""
    assert rules.text is not None
    tokens = tokens_of(text)
    matcher = rules.text.deep_copy()
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def allowed(rules: Rules, output: Sequence[int], size: int) -> list[int]:
    """The tokens that may come next."""
    bits = Guide.fill_masks([(Guide(rules), output, len(output))], size).view(np.uint8)
    row = np.unpackbits(bits, axis=1, count=size, bitorder="little")[0]
    return [int(token) for token in row.nonzero()[0]]
