"""What single tokens stand for, looked up in place of decoding them again and again."""

from __future__ import annotations

import tokenizers


class OwnTexts(dict[int, str]):
    """See ``Tokenizer.own_texts``; each is found out when it is first asked for.

    Only of a byte-level decoder, which joins the bytes of tokens: what is a whole text by itself is
    that everywhere.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> None:
        super().__init__()
        self._backend, self._special_ids = backend, special_ids
        self._joins_bytes = type(backend.decoder) is tokenizers.decoders.ByteLevel

    def __missing__(self, token_id: int) -> str:
        text = ""
        if self._joins_bytes and token_id not in self._special_ids:
            text = self._backend.decode([token_id], skip_special_tokens=False)
        self[token_id] = text = "" if "\ufffd" in text else text
        return text
