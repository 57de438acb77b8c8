"""How much text one token may stand for, so that what cannot fit is known by its length."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

_COMPOSED = 4  # most characters that Unicode composes into one
_FALLBACK = [f"<0x{byte:02X}>" for byte in range(256)]


def longest_token(backend: tokenizers.Tokenizer) -> int | None:
    """Most characters of a text that one of its tokens can stand for; None: any number.

    There is such a number for a BPE that spells what it does not know by bytes, in a tokenizer
    that leaves nothing out on the way. WordPiece and WordLevel put one unknown token for a word of
    any length, as Unigram does; others strip or collapse spaces, or drop control characters.
    """
    model = backend.model
    if not isinstance(model, BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    steps = [*_steps(backend.normalizer), *_steps(backend.pre_tokenizer)]
    kinds = {step["type"] for step in steps}
    vocabulary = backend.get_vocab(with_added_tokens=True)
    letters = ByteLevel.alphabet() if "ByteLevel" in kinds else _FALLBACK
    spells_bytes = "ByteLevel" in kinds or model.byte_fallback
    if not (spells_bytes and vocabulary.keys() >= set(letters)):
        return None  # it leaves out what it does not know, or runs it together
    if not all(map(_keeps_everything, steps)):
        return None
    if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
        return None  # it takes the spaces beside it
    return max(map(len, vocabulary)) * (_COMPOSED if kinds & {"NFC", "NFKC"} else 1)


def _steps(part: object) -> Iterator[Mapping[str, Any]]:
    """The normalizers or pre-tokenizers of which one is made, as ``tokenizer.json`` has them."""
    if part is None:
        return
    todo = [json.loads(part.__getstate__())]  # type: ignore[attr-defined]
    while todo:
        step = todo.pop()
        if step["type"] == "Sequence":
            todo += step.get("normalizers", step.get("pretokenizers"))
        else:
            yield step


def _keeps_everything(step: Mapping[str, Any]) -> bool:
    """Whether what comes out has at least as many characters, but for those that are composed."""
    match step:
        case {"type": "Split" | "Punctuation", "behavior": behavior}:
            return bool(behavior != "Removed")
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            return len(new) >= len(old)
        case {"type": kind}:
            return kind in _KEEPING
    return False


_KEEPING = {
    "ByteLevel",
    "Digits",
    "Lowercase",
    "Metaspace",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Prepend",
}
