"""Tokens to text as they come, and the stop strings that end it."""

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
        self, tokenizer: Tokenizer, context: Sequence[int], skip_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._window = list(context[-_CONTEXT:])
        if self._decode(self._window).endswith("\ufffd"):
            self._window.clear()
        self._emitted = len(self._window)  # tokens of the window whose text is out

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` completes, often its own, possibly none."""
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
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip)


class StopStrings:
    """Releases text only when it can no longer be the beginning of a stop string."""

    def __init__(self, stop: Sequence[str], include_in_output: bool) -> None:
        self._stop = stop
        self._include = include_in_output
        self._held = ""
        self.matched: str | None = None  # the stop string that ended the text

    def push(self, text: str) -> str:
        """The text that may be shown now. Once ``matched`` is set, nothing follows."""
        if not self._stop:
            return text
        self._held += text
        found = [(self._held.find(s), s) for s in self._stop if s in self._held]
        if found:
            start, self.matched = min(found)
            end = start + len(self.matched) if self._include else start
            return self._release(end)
        return self._release(len(self._held) - self._possible_stop())

    def flush(self) -> str:
        """The text held back, when no more comes."""
        return self._release(len(self._held))

    def _release(self, end: int) -> str:
        text, self._held = self._held[:end], self._held[end:]
        return text

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = min(len(self._held), max(map(len, self._stop)) - 1)
        for length in range(longest, 0, -1):
            if any(s.startswith(self._held[-length:]) for s in self._stop):
                return length
        return 0
