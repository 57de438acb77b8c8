"""A model's tokens as llguidance knows them: what each is as text, and which are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from llguidance import LLTokenizer

from quire.errors import RequestError

_FIELD = "structured_outputs"


class Tokenizer(Protocol):
    """What is asked of a model's tokenizer."""

    @property
    def special_ids(self) -> frozenset[int]:
        """The tokens that are no text."""
        ...

    def to_json(self) -> str | None:
        """The text of a tokenizer.json for it; None where there is none."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Sequence[int]: ...

    def token_id(self, token: str) -> int | None:
        """Of a token by its name; None: there is no such token."""
        ...


class Vocabulary:
    """Made once for a model, which takes a while where its tokens are many.

    words: for matchers. A token that ends a text, or is special, is no text in it: what looks like
        one is written with others.
    ends: tokens that end a text.
    """

    def __init__(self, tokenizer: Tokenizer, size: int, ends: frozenset[int]) -> None:
        """RequestError where it cannot be known what tokens are as text."""
        text = tokenizer.to_json()
        if text is None or not ends:
            why = "whose text can be read token by token" if text is None else "with an end"
            raise RequestError(f"{_FIELD} needs a tokenizer {why}", _FIELD)
        self.ends, self.token_id = ends, tokenizer.token_id
        self.special = tokenizer.special_ids | ends
        try:
            # It takes whatever looks like a mark for special, and special ones for text.
            self._spelling = LLTokenizer(text, n_vocab=size, eos_token=sorted(ends), slices=[])
        except ValueError as error:
            raise RequestError(
                f"{_FIELD} needs a tokenizer whose text can be read token by token; this one's "
                f"cannot: {str(error)[:200]}",
                _FIELD,
            ) from None
        self.words = LLTokenizer(_Words(self, size), eos_token=sorted(ends))  # type: ignore[arg-type]

    def tokens(self, text: bytes, after: int | None) -> list[int]:
        """How a text is mostly written, as far as that is certain whatever follows.

        after: the token before it.
        """
        tokens, _ = self._spelling.tokenize_partial(text, None if after is None else [after])
        if self.special.isdisjoint(tokens) and text.startswith(self.words.decode_bytes(tokens)):
            return tokens
        return []

    def token_texts(self, size: int) -> list[bytes]:
        return [self._spelling.decode_bytes([token]) for token in range(size)]


class _Words:
    """As llguidance wants it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, size: int) -> None:
        self.eos_token_id = min(vocabulary.ends)
        self.tokens = vocabulary.token_texts(size)
        nameless = {id for id, text in enumerate(self.tokens) if text == b"<[%d]>" % id}
        self.special_token_ids = sorted(vocabulary.special | nameless)

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("grammars are compiled so that no text is made tokens of")
