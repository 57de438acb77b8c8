"""Tokens to text as they come."""

from __future__ import annotations

from collections.abc import Sequence

from quire.engine.tokenizer import Tokenizer

_CONTEXT = 6  # tokens before the first one that decide, e.g., whether the first word gets a space


class Detokenizer:
    """Text of a growing token list, emitted as soon as its characters are complete.

    A token may end in the middle of a character, and some decoders treat the first token of a
    text differently. So what is new is the difference between decoding a short window with the
    new tokens and without them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context: Sequence[int],
        skip_special_tokens: bool,
        kept: Sequence[int] = (),
    ) -> None:
        """kept: special tokens that are never skipped."""
        self._tokenizer = tokenizer
        some = skip_special_tokens and bool(kept)
        self._own_texts = tokenizer.own_texts
        self._skip = skip_special_tokens and not kept
        self._dropped = tokenizer.special_ids.difference(kept) if some else frozenset()
        self._window = list(context[-_CONTEXT:])
        if self._decode(self._window).endswith("\ufffd"):
            self._window.clear()
        self._emitted = len(self._window)  # tokens of the window whose text is out

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` completes, often its own, possibly none."""
        if self._emitted == len(self._window) and (text := self._own_texts[token_id]):
            self._window, self._emitted = [token_id], 1
            return text
        self._window.append(token_id)
        before, after = self._decode(self._window[: self._emitted]), self._decode(self._window)
        if len(after) <= len(before) or after.endswith("\ufffd"):
            return ""
        del self._window[: self._emitted]
        self._emitted = len(self._window)
        return after[len(before) :]

    def flush(self) -> str:
        """What is left at the end: characters that were never completed."""
        before, after = self._decode(self._window[: self._emitted]), self._decode(self._window)
        self._emitted = len(self._window)
        return after[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        if self._dropped:
            token_ids = [id for id in token_ids if id not in self._dropped]
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip)
