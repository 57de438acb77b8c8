"""Texts of any length to the tokens of a prompt, at a cost bounded by what can be served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from quire.core.errors import ContextLengthError, RequestError
from quire.text.chat_template import Message
from quire.text.pairs import Pair
from quire.text.params.parameters import check_unicode
from quire.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class PromptForm:
    """What the caller decides.

    add_special_tokens: None: they are added around a text; a conversation has its template's.
    most: tokens that are kept, the last ones, or the first if ``keep_first``; None: all.
    suffix: the text after the one that the model is to write in between.
    keep_special: the text is cut; the special tokens around it stay, and count. So for a vector or
        a score.
    keep_begin: the same for a text to continue, which ends as its tokenizer ends it.
    """

    add_special_tokens: bool | None = None
    most: int | None = None
    keep_first: bool = False
    suffix: str | None = None
    keep_special: bool = False
    keep_begin: bool = False

    def cut(self, token_ids: list[int]) -> list[int]:
        if self.most is None or len(token_ids) <= self.most:
            return token_ids
        return token_ids[: self.most] if self.keep_first else token_ids[-self.most :]

    def cut_between(self, before: list[int], token_ids: list[int], after: list[int]) -> list[int]:
        """``token_ids`` cut so that with all that is around them they are no more."""
        around = len(before) + len(after)
        if self.most is None or around >= self.most:
            return self.cut([*before, *token_ids, *after])
        inner = replace(self, most=self.most - around)
        return [*before, *inner.cut(token_ids), *after]


def special_around(encode: Callable[..., list[int]]) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer puts before a text, and after it."""
    plain, whole = encode("a", add_special_tokens=False), encode("a", add_special_tokens=True)
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return [], []


class KnowsTokens(Protocol):
    def token_id(self, token: str) -> int | None:
        """The id of a token; None: there is no such token."""
        ...


# Before what precedes, before what follows, and before what is to be written.
_KNOWN_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
)


def infilling_marks(tokenizer: KnowsTokens, vocab_size: int) -> tuple[int, int, int] | None:
    """The tokens with which a model fills the gap between two texts, if it has any."""
    for names in _KNOWN_MARKS:
        found = [tokenizer.token_id(name) for name in names]
        known = [one for one in found if one is not None and one < vocab_size]
        if len(known) == len(names):
            return known[0], known[1], known[2]
    return None


def around_the_gap(
    marks: tuple[int, int, int], begin: Sequence[int], prefix: Sequence[int], suffix: Sequence[int]
) -> list[int]:
    """``begin``: the special tokens that a text begins with."""
    return [*begin, marks[0], *prefix, marks[1], *suffix, marks[2]]


MAX_TOKENS = 2**20  # of one input where there is no longest sequence
MAX_CHARACTERS = 2**22  # of one input, where max_model_len does not allow for more
_CHARACTERS_A_TOKEN = 16  # more of them than any text has on average, over a long one
_PIECE = 2**17  # characters
_OF_PROMPTS = ("prompt", "messages", "tools", "input", "suffix")
_SLACK = 2  # by which pieces may have more tokens than their whole


class Encoder:
    """Encodes texts that may fit, and refuses others before much time is spent on them.

    A text is refused by its characters if it cannot fit: more than ``max_model_len`` times the
    longest token, or more than ``MAX_CHARACTERS`` and 16 a token, with which only spaces could fit.
    The rest may still have many more tokens than fit. So a long text is first counted in pieces,
    until they have twice as many tokens as allowed. Cutting changes only the tokens beside the
    cuts, so that no text is refused that fits.

    max_model_len: None: there is no longest sequence.
    """

    def __init__(self, tokenizer: Tokenizer, max_model_len: int | None) -> None:
        self.tokenizer = tokenizer
        self._max_model_len = max_model_len
        self.max_tokens = max_model_len or MAX_TOKENS
        self.max_characters = MAX_CHARACTERS
        if max_model_len is not None:
            self.max_characters = max(MAX_CHARACTERS, max_model_len * _CHARACTERS_A_TOKEN)
            if tokenizer.longest_token is not None:
                most = max_model_len * tokenizer.longest_token
                self.max_characters = min(self.max_characters, most)

    def encode(
        self, field: str, text: str, *, add_special_tokens: bool = True, to_be_cut: bool = False
    ) -> list[int]:
        """The tokens of a text; RequestError, naming ``field``, if they cannot fit."""
        self._check_text(field, text, to_be_cut=to_be_cut)
        with _naming(field):
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def encode_pair(self, field: str, first: str, second: str, most: int | None = None) -> Pair:
        """Two texts as one prompt, cut to ``most`` tokens; RequestError if they cannot fit."""
        for text in (first, second):
            self._check_text(field, text, to_be_cut=most is not None)
        with _naming(field):
            return self.tokenizer.encode_pair(first, second, most)

    def _check_text(self, field: str, text: str, *, to_be_cut: bool) -> None:
        self.check_characters(field, len(text))
        check_unicode(field, text)
        if len(text) > _PIECE and not to_be_cut:
            self._check_pieces(field, text)

    def render(self, messages: Sequence[Message], variables: Mapping[str, object]) -> str:
        """The text of a conversation, no longer than may fit."""
        given = {"messages": messages, "tools": variables.get("tools")}
        for field, value in {**given, "chat_template_kwargs": variables}.items():
            self.check_characters(field, weight(value, self.max_characters))
        return self.tokenizer.apply_chat_template(messages, variables, self.max_characters)

    def check_characters(self, field: str, length: int) -> None:
        if length > self.max_characters:
            at_least = self.max_tokens + 1
            raise self._too_long(field, f"{length} characters", self.max_characters, at_least)

    def check_count(self, field: str, count: int, output: int = 1) -> None:
        """RequestError for too many token ids; ``output`` of them must be left to generate."""
        most = self.max_tokens - (output if self._max_model_len is not None else 0)
        if count > most:
            raise self._too_long(field, f"{count} tokens", most, count)

    def _check_pieces(self, field: str, text: str) -> None:
        count = 0
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE]
            if self.tokenizer.longest_token is None:
                piece = piece.strip()  # a token of the piece beside it may take all these spaces
            with _naming(field):
                count += self.tokenizer.count(piece)
            if count > _SLACK * self.max_tokens:
                at_least = count // _SLACK
                length = f"more than {at_least} tokens"
                raise self._too_long(field, length, self.max_tokens, at_least)

    def _too_long(self, field: str, length: str, most: int, tokens: int) -> RequestError:
        limit = "" if self._max_model_len is None else f"with max_model_len {self._max_model_len} "
        text = f"{field} has {length}; {limit}it may have at most {most}"
        if field not in _OF_PROMPTS:
            return RequestError(text, field)
        longest = self.max_tokens
        return ContextLengthError(text, field, tokens, min(most, longest), longest)


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """The tokenizer, which refuses a text, does not know which field it is of."""
    try:
        yield
    except RequestError as error:
        if error.field != "prompt":
            raise
        raise RequestError(f"{field}: {error}", field) from None


def weight(value: object, at_most: int) -> int:
    """Characters and items in a JSON value, counted until they are more than ``at_most``."""
    total, todo = 0, [value]
    while todo and total <= at_most:
        match todo.pop():
            case str(text):
                total += len(text)
            case dict() | Mapping() as items:
                total += len(items)
                if total <= at_most:
                    todo += [*items, *items.values()]
            case list() | tuple() as items:
                total += len(items)
                if total <= at_most:
                    todo += items
    return total
