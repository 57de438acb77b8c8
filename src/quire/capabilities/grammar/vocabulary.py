"""A model's tokens as llguidance knows them: what each is as text, and which are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from llguidance import LLTokenizer

from quire.core.errors import RequestError, reason

_FIELD = "structured_outputs"


class GrammarTokenizer(Protocol):
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
        """The id of a token by its name; None: there is no such token."""
        ...


class GrammarVocabulary:
    """Made once for a model, which takes a while where its tokens are many.

    words: for matchers. A token that is special, or ends a text, is no text in it: what looks like
        one is written with others. All others are, also those that look like marks.
    """

    def __init__(self, tokenizer: GrammarTokenizer, size: int, ends: frozenset[int]) -> None:
        """RequestError where it cannot be known what tokens are as text."""
        text = tokenizer.to_json()
        if text is None or not ends:
            why = "whose text can be read token by token" if text is None else "with an end"
            raise RequestError(f"{_FIELD} needs a tokenizer {why}", _FIELD)
        self.token_id = tokenizer.token_id
        self._special = tokenizer.special_ids | ends
        self._spelling = _read(text)
        words: Any = _Words(self._texts(size), self._special, min(ends))
        self.words = LLTokenizer(words, eos_token=sorted(ends))

    def tokens(self, text: bytes, after: int | None) -> list[int]:
        """How a text is mostly written, as far as that is certain whatever follows.

        after: the token before it.
        """
        before = [] if after is None or after >= self._spelling.vocab_size else [after]
        tokens, _ = self._spelling.tokenize_partial(text, before)
        # What looks like a special token has become one, and what is before it may reach into it.
        first = next((i for i, token in enumerate(tokens) if token in self._special), None)
        if first is not None:
            tokens = tokens[: max(first - 1, 0)]
        # A tokenizer may also write other letters than it is given.
        return tokens if text.startswith(self.text(tokens)) else []

    def text(self, tokens: Sequence[int]) -> bytes:
        """Special ones by their names."""
        return self.words.decode_bytes(list(tokens))

    def _texts(self, size: int) -> list[bytes]:
        known = min(size, self._spelling.vocab_size)
        texts = [self._spelling.decode_bytes([token]) for token in range(known)]
        return texts + [b"<[%d]>" % token for token in range(known, size)]


class _Words:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, texts: list[bytes], special: frozenset[int], end: int) -> None:
        self.eos_token_id = end
        self.tokens = texts
        nameless = {token for token, text in enumerate(texts) if text == b"<[%d]>" % token}
        self.special_token_ids = sorted(special | nameless)

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("grammars are compiled so that no text is made tokens of")


def _read(text: str) -> LLTokenizer:
    try:
        return LLTokenizer(text, slices=[])
    except BaseException as error:  # what it does not expect, it panics at
        if not isinstance(error, ValueError) and type(error).__name__ != "PanicException":
            raise
        raise RequestError(
            f"{_FIELD} needs a tokenizer whose text can be read token by token; of this one "
            f"llguidance says: {reason(error)}",
            _FIELD,
        ) from None
