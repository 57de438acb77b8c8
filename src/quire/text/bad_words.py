"""Forbidden words, as the tokens that would write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from quire.core.errors import RequestError, shown
from quire.text.tokenizer import TokenTexts

_BEFORE = ("a", "\n", ".")  # words are tokenized after this, so that they do not begin a text

Encode = Callable[[str], Sequence[int]]


def bad_word_ids(word: str, encode: Encode, own: TokenTexts) -> set[tuple[int, ...]]:
    """The tokens that spell a word: as it is given, and after a space if it begins with none.

    RequestError: no tokens spell it.
    """
    forms = (word,) if word[0].isspace() else (word, " " + word)
    found = {ids for form in forms for ids in _spelling(form, encode, own)}
    if not found and not word.isspace():
        # Of tokens that stand for other letters, such as those without capitals and accents.
        found = {ids for form in forms if (ids := tuple(encode(form)))}
    if not found:
        raise RequestError(f"bad_words: no tokens of this model spell {shown(word)}", "bad_words")
    return found


def _spelling(form: str, encode: Encode, own: TokenTexts) -> Iterator[tuple[int, ...]]:
    """The tokens of a text, as the tokenizer cuts it, that spell ``form`` and nothing else.

    A tokenizer may put a space before a text by itself, so the form is tried without its first
    space, and after something else.
    """
    expected = form.encode()
    for ids in _attempts(form, encode):
        if ids and b"".join([own.bytes[token_id] for token_id in ids]) == expected:
            yield ids
            return


def _attempts(form: str, encode: Encode) -> Iterator[tuple[int, ...]]:
    yield tuple(encode(form))
    if form[0] == " ":
        yield tuple(encode(form[1:]))
    for before in _BEFORE:
        first, both = encode(before), encode(before + form)
        if [*both[: len(first)]] == [*first]:
            yield tuple(both[len(first) :])
