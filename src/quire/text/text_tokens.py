"""Tokens in their text, and how each of them reads there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.text.detokenizer import Detokenizer
from quire.text.encoder import special_around
from quire.text.tokenizer import Tokenizer, TokenTexts


class TextToken(NamedTuple):
    """A token in its text, in whose place others might be.

    added: to the text: nothing while a character is incomplete, and all of it with its last token.
    shown: whether the token is part of the text. If not, it reads by itself, as a mark does.
    begun: bytes of a character that earlier tokens have begun.
    """

    own: TokenTexts
    token_id: int
    added: str = ""
    shown: bool = False
    begun: bytes = b""

    def text(self, token_id: int) -> str:
        """How a token reads here."""
        if self.shown and token_id == self.token_id:
            return self.added
        return self.own.named(token_id, self.begun)

    def data(self, token_id: int) -> bytes:
        """The bytes that a token adds here."""
        chosen = self.shown and token_id == self.token_id and not self.begun
        if chosen and self.own.whole(token_id) and "\ufffd" not in self.added:
            return self.added.encode()  # without a space that the text does not begin with
        return self.own.bytes[token_id]


class Echo(NamedTuple):
    """A prompt's text, and its tokens in it."""

    text: str
    tokens: Sequence[TextToken]


def tokens_in_text(
    tokenizer: Tokenizer, token_ids: Sequence[int], first: int = 0, end: int | None = None
) -> list[TextToken]:
    """Tokens in the text of all of them, special ones too; of those from ``first`` to ``end``."""
    own, last = tokenizer.own_texts, (len(token_ids) if end is None else end) - 1
    detokenizer, tokens = Detokenizer(tokenizer, (), skip_special_tokens=False), []
    for number, token_id in enumerate(token_ids):
        if not first <= number <= last:
            tokens.append(TextToken(own, token_id))
            continue
        begun = detokenizer.begun
        added = detokenizer.push(token_id)
        if number == last:
            added += detokenizer.flush()
        tokens.append(TextToken(own, token_id, added, True, begun))
    return tokens


def echo_of(tokenizer: Tokenizer, token_ids: Sequence[int], given: str | None) -> Echo:
    """A prompt as it was given, a text or (None) its tokens.

    A text does not have the special tokens that were put around it.
    """
    if given is None:
        tokens = tokens_in_text(tokenizer, token_ids)
        return Echo(_text(tokens), tokens)
    first, end = _within(tokenizer, token_ids)
    around = tokens_in_text(tokenizer, token_ids, first, end)
    if _text(around) != given and (first, end) != (0, len(token_ids)):
        whole = tokens_in_text(tokenizer, token_ids)  # it may have been given with its marks
        if _text(whole) == given:
            return Echo(given, whole)
    return Echo(given, around)


def text_left(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """The text of which, after a cut, these tokens are left, without the marks around it."""
    first, end = _within(tokenizer, token_ids)
    return tokenizer.decode(token_ids[first:end], skip_special_tokens=False)


def _within(tokenizer: Tokenizer, token_ids: Sequence[int]) -> tuple[int, int]:
    """The bounds of a text between the special tokens that are put around texts."""
    before, after = special_around(tokenizer.encode)
    count = len(token_ids)
    first = len(before) if [*token_ids[: len(before)]] == before else 0
    ended = after and [*token_ids[-len(after) :]] == after
    return first, max(first, count - len(after)) if ended else count


def _text(tokens: Sequence[TextToken]) -> str:
    return "".join(token.added for token in tokens)
