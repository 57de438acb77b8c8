"""Tokenizers of GGUF files make of every text what the tokenizer.json makes that they were."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Split

from quire.core.errors import ModelError
from quire.text.tokenizer import load_tokenizer
from support.gguf_vocabularies import write_like
from support.small_tokenizers import byte_level

NASTY = (
    "", " ", "the town", "  by  the\n\n river \t", "naïve ü 日本語 한국어", "1234567 3.14 0x1F",
    "it's WE'LL don't", "👩‍👩‍👧 \u200d\ufeff", "a\0b", "<|endoftext|>",
    "<end> x<end><think>y</think>", "x" * 70, "\r\n \r\n", "e\u0301 é", "   trailing   ",
)  # fmt: skip
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS: Mapping[str, Any] = {
    "gpt-2": ByteLevel(add_prefix_space=False, use_regex=True),
    "smollm": [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)],
    "llama-bpe": Split(Regex(_QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)), "isolated"),
    "qwen2": Split(Regex(_QWEN), "isolated"),
}


def check(path: Path, original: Tokenizer, first: list[int]) -> None:
    found = load_tokenizer(path)
    for text in NASTY:
        ids = original.encode(text).ids
        assert found.encode(text) == first + ids, text
        assert found.encode(text, add_special_tokens=False) == ids
        for skip in (True, False):
            expected = original.decode(ids, skip_special_tokens=skip)
            assert found.decode(ids, skip_special_tokens=skip) == expected


@pytest.mark.parametrize("split", SPLITS)
def test_byte_level(split: str, tmp_path: Path) -> None:
    special = [AddedToken("<end>", special=True), AddedToken("<think>"), AddedToken("</think>")]
    before = SPLITS[split] if isinstance(SPLITS[split], list) else [SPLITS[split]]
    original = byte_level(before=before[:-1] if split == "smollm" else before, special=special)
    if "Split" not in type(before[-1]).__name__:
        from tokenizers.pre_tokenizers import Sequence

        original.pre_tokenizer = Sequence(before)
    path = write_like(tmp_path / "model.gguf", original, "gpt2", pre=split, add_bos_token=False)
    check(path, original, [])
    bos = original.token_to_id("<end>")
    write_like(path, original, "gpt2", pre=split, add_bos_token=True, bos_token_id=bos)
    check(path, original, [bos])


def sentencepiece() -> Tokenizer:
    """As Llama 2's: characters, byte by byte where there is none, and spaces that are letters."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁thernowby",
              "▁t", "th", "▁th", "er", "▁▁", "he"]  # fmt: skip
    merges = [("▁", "t"), ("t", "h"), ("▁t", "h"), ("▁", "th"), ("h", "e"), ("e", "r"), ("▁", "▁")]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    made = Tokenizer(
        models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    return made


def test_sentencepiece(tmp_path: Path) -> None:
    path = write_like(
        tmp_path / "model.gguf", sentencepiece(), "llama", bos_token_id=1, eos_token_id=2
    )
    check(path, sentencepiece(), [1])


def test_the_chat_template(tmp_path: Path) -> None:
    path = write_like(
        tmp_path / "model.gguf", sentencepiece(), "llama", bos_token_id=1, eos_token_id=2,
        chat_template="{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}",
    )  # fmt: skip
    tokenizer = load_tokenizer(path)
    assert tokenizer.special_ids == {0, 1, 2}
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], {})
    assert text == "<s>[hi]"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pre": "unheard-of"}, "tokenizer.ggml.pre is 'unheard-of'; supported"),
        ({"bos_token_id": 10**6}, "tokenizer.ggml.bos_token_id is 1000000, and there are"),
    ],
)
def test_what_cannot_be_exact_is_refused(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_like(tmp_path / "model.gguf", byte_level(), "gpt2", **fields)
    with pytest.raises(ModelError, match=message):
        load_tokenizer(path)
