"""What a tokenizer keeps of words and tokens that it has met."""

from __future__ import annotations

import tokenizers
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE, Unigram

_WORDS_KEPT = 2_000


def bound_words(backend: tokenizers.Tokenizer) -> None:
    """Keep fewer words than the library's 10,000: hostile ones take 8 KB each, for ever."""
    if isinstance(backend.model, (BPE, Unigram)):  # the others keep none
        backend.model._resize_cache(_WORDS_KEPT)


class OwnTexts(dict[int, str]):
    """See ``Tokenizer.own_texts``; each is found out when it is first asked for.

    Only of a byte-level decoder, which joins the bytes of tokens: what is a whole text by itself is
    that everywhere.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> None:
        super().__init__()
        self._backend, self._special_ids = backend, special_ids
        self._joins_bytes = type(backend.decoder) is ByteLevel

    def __missing__(self, token_id: int) -> str:
        text = ""
        if self._joins_bytes and token_id not in self._special_ids:
            text = self._backend.decode([token_id], skip_special_tokens=False)
        self[token_id] = text = "" if "\ufffd" in text else text
        return text
