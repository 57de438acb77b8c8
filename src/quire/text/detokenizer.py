"""Tokens to text as they come."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

from quire.text.tokenizer import Tokenizer, TokenTexts, spaces

_CONTEXT = 64  # tokens before the first one that decide, e.g., whether the first word gets a space
_LONGEST_CHARACTER = 4  # bytes
_MOST_HELD = 32  # tokens that may wait for the rest of a character

_decoder_of_bytes = getincrementaldecoder("utf-8")


class Detokenizer:
    """Text of a growing token list, emitted as soon as its characters are complete.

    It goes on from a context: what is new is the text of both without that of the context. Where
    the context ends within a character that is completed, the whole character is new.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context: Sequence[int],
        skip_special_tokens: bool,
        kept: Sequence[int] = (),
    ) -> None:
        """kept: special tokens that are never skipped."""
        own = self._own_texts = tokenizer.own_texts
        self._dropped = frozenset[int]()
        if skip_special_tokens:
            self._dropped = tokenizer.special_ids.difference(kept)
        seen = _Seen(context, self._dropped)
        self._text: _Text = _Window(tokenizer, seen) if own.strips is None else _Bytes(own, seen)

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` completes, often its own, possibly none."""
        text = self._text
        if text.at_rest and (own := self._own_texts[token_id]):
            return own
        return "" if token_id in self._dropped else text.push(token_id)

    def flush(self) -> str:
        """The rest at the end: characters that were never completed."""
        return self._text.flush()

    def shows(self, token_id: int) -> bool:
        """Whether a token is part of the text."""
        return token_id not in self._dropped

    @property
    def begun(self) -> bytes:
        """The bytes of a character that is not complete yet."""
        return b"" if self._text.at_rest else self._text.begun


class _Seen:
    """A context without the dropped tokens, read from either end."""

    def __init__(self, token_ids: Sequence[int], dropped: frozenset[int]) -> None:
        self._token_ids, self._dropped = token_ids, dropped

    def __iter__(self) -> Iterator[int]:
        return (id for id in self._token_ids if id not in self._dropped)

    def __reversed__(self) -> Iterator[int]:
        return (id for id in reversed(self._token_ids) if id not in self._dropped)


class _Text(Protocol):
    at_rest: bool  # what a token adds now is what it adds anywhere, if there is such a text

    @property
    def begun(self) -> bytes: ...

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class _Bytes:
    """A text that is the bytes of its tokens, joined."""

    def __init__(self, own: TokenTexts, seen: _Seen) -> None:
        self._bytes = own.bytes
        self._decoder = _decoder_of_bytes("replace")
        tail = b""
        for token_id in reversed(seen):
            tail = own.bytes[token_id] + tail
            if len(tail) >= _LONGEST_CHARACTER:
                break
        self._decoder.decode(tail)
        self._goes_on = bool(self.begun)  # with a character of the context
        self._strips = own.strips or 0  # spaces that are left out yet
        for token_id in seen if self._strips else ():
            self._stripped(own.bytes[token_id].decode(errors="replace"))
            if not self._strips:
                break
        self._settle()

    @property
    def begun(self) -> bytes:
        return self._decoder.getstate()[0]

    def push(self, token_id: int) -> str:
        text = self._new(self._decoder.decode(self._bytes[token_id]))
        self._settle()
        return text

    def flush(self) -> str:
        text = self._new(self._decoder.decode(b"", final=True))
        self._settle()
        return text

    def _settle(self) -> None:
        self.at_rest = not self._strips and not self.begun

    def _new(self, text: str) -> str:
        if text and self._goes_on:  # what the context left incomplete is its own
            self._goes_on = False
            text = text.removeprefix("\ufffd")
        return self._stripped(text) if self._strips else text

    def _stripped(self, text: str) -> str:
        """The text without the leading spaces that its decoder strips, if it begins here."""
        found = spaces(text, self._strips)
        rest = text[found:]
        self._strips = 0 if rest else self._strips - found
        return rest


class _Window:
    """Any other text: what is new is what decoding a few tokens gives with the new ones alone."""

    at_rest = False

    def __init__(self, tokenizer: Tokenizer, seen: _Seen) -> None:
        self._tokenizer = tokenizer
        self._window = [*islice(reversed(seen), _CONTEXT)][::-1]
        self._emitted = len(self._window)  # tokens of the window whose text is out
        while self._emitted and self._before().endswith("\ufffd"):
            self._emitted -= 1

    @property
    def begun(self) -> bytes:
        own = self._tokenizer.own_texts.bytes
        return b"".join([own[token_id] for token_id in self._window[self._emitted :]])

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        before, after = self._before(), self._decode(self._window)
        waits = after.endswith("\ufffd") and len(self._window) - self._emitted < _MOST_HELD
        if len(after) <= len(before) or waits:
            return ""
        del self._window[: self._emitted]
        self._emitted = len(self._window)
        return after[len(before) :]

    def flush(self) -> str:
        before, after = self._before(), self._decode(self._window)
        self._emitted = len(self._window)
        return after[len(before) :]

    def _before(self) -> str:
        return self._decode(self._window[: self._emitted])

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)
