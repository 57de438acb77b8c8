"""How a text becomes the tokens of a prompt, as far as the caller decides it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol


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
