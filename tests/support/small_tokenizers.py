"""Small tokenizers of every kind, made here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

_TEXTS = ["the town by the river was quiet", "    and    nobody spoke", "naïve ü ñ 日本語 1234"] * 4
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())  # which the library gives in any order


def byte_level(
    normalizer: normalizers.Normalizer | None = None,
    alphabet: Sequence[str] = ALPHABET,
    special: Sequence[AddedToken] = (),
    before: Sequence[pre_tokenizers.PreTokenizer] = (),
    vocab_size: int = 400,
    end_of_word_suffix: str = "",
) -> Tokenizer:
    """A BPE over bytes, as GPT-2's, whose longest token is a run of 32 spaces."""
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, last])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=list(alphabet),
        end_of_word_suffix=end_of_word_suffix,
        show_progress=False,
    )
    tokenizer.train_from_iterator([*_TEXTS, " " * 32], trainer)
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def with_byte_fallback(special: Sequence[str] = (), *, strips: bool = True) -> Tokenizer:
    """A BPE over characters that spells the others by bytes, as Llama 2's.

    special: the first of them begins every prompt. strips: its texts do not begin with the space
    that is put before them; Gemma's keep it.
    """
    pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), *"▁abc", "▁a", "ab", "▁▁"]
    vocabulary = {piece: number for number, piece in enumerate([*pieces, *special])}
    merges = [("▁", "a"), ("a", "b"), ("▁", "▁")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True))
    first = [normalizers.Prepend("▁")] if strips else []
    tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    last = [decoders.Strip(" ", 1, 0)] if strips else []
    tokenizer.decoder = decoders.Sequence([*steps, *last])
    if special:
        tokenizer.add_special_tokens([*special])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{special[0]} $A", special_tokens=[(special[0], vocabulary[special[0]])]
        )
    return tokenizer


def without_fallback() -> Tokenizer:
    """A BPE that leaves out the characters that it does not know."""
    return Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def word_level() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def unigram() -> Tokenizer:
    """Runs what it does not know together into one token."""
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("▁", -1.5)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


# A token of these stands for at most so many characters.
BOUNDED: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "composing": lambda: byte_level(normalizers.NFC(), vocab_size=256),  # one byte a token
    "lower case": lambda: byte_level(
        normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    ),
    "split": lambda: byte_level(
        before=[pre_tokenizers.Split(Regex(r" ?\p{L}+|\s+"), "isolated"), pre_tokenizers.Digits()]
    ),
    "byte fallback": with_byte_fallback,
}
# A token of these may stand for any number.
UNBOUNDED: dict[str, Callable[[], Tokenizer]] = {
    "word piece": word_piece,
    "word level": word_level,
    "unigram": unigram,
    "no fallback": without_fallback,
    "letters missing": lambda: byte_level(alphabet=ALPHABET[:10]),
    "stripped": lambda: byte_level(normalizers.Strip()),
    "accents stripped": lambda: byte_level(
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    ),
    "spaces collapsed": lambda: byte_level(normalizers.Replace(Regex(" +"), " ")),
    "shortened": lambda: byte_level(normalizers.Replace("ab", "")),
    "spaces removed": lambda: byte_level(before=[pre_tokenizers.Split(" ", "removed")]),
    "words removed": lambda: byte_level(before=[pre_tokenizers.WhitespaceSplit()]),
    "suffixed": lambda: byte_level(end_of_word_suffix="</w>"),
    "greedy special token": lambda: byte_level(special=[AddedToken("<end>", rstrip=True)]),
}
