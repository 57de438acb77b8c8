"""Tokens of GGUF files that are found whole in a text, and those by which texts end."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind

from quire import LLM, SamplingParams
from quire.core.errors import ModelError
from quire.models.gguf import WORDS, Words, end_tokens, open_gguf
from quire.text.tokenizer import load_tokenizer
from support.gguf_files import write_gguf
from support.gguf_vocabularies import (
    ADDED,
    CONTROL,
    FIRST,
    LETTERS,
    NORMAL,
    UNKNOWN,
    write_bytes,
    write_pieces,
)
from support.small_models import VOCAB_SIZE

DEEPSEEK = {
    "<｜begin▁of▁sentence｜>": CONTROL,
    "<｜end▁of▁sentence｜>": CONTROL,
    "<｜User｜>": ADDED,
}


@pytest.mark.parametrize("told", [{"add_bos_token": False}, {"add_bos_token": True}, {}])
def test_marks_of_letters_that_no_byte_has(told: dict[str, bool], tmp_path: Path) -> None:
    """As DeepSeek's."""
    bos = FIRST + 1
    found = load_tokenizer(write_bytes(tmp_path / "m.gguf", DEEPSEEK, bos_token_id=bos, **told))
    assert found.encode("<｜User｜>th<｜end▁of▁sentence｜>") == [
        *([bos] if told.get("add_bos_token") else []), bos + 2, FIRST, bos + 1
    ]  # fmt: skip
    assert found.decode([bos, bos + 2, FIRST]) == "<｜User｜>th"
    assert found.special_ids == {bos, bos + 1}


def test_added_tokens_of_white_space_and_of_letters_that_bytes_have(tmp_path: Path) -> None:
    """Runs of spaces as GPT-NeoX's; letters of bytes that no text has, as DeepSeek's."""
    whole = {"  ": ADDED, "    ": ADDED, "\n\n": ADDED, "õ": ADDED, "<né>": ADDED, "<x>": CONTROL}
    found = load_tokenizer(write_bytes(tmp_path / "m.gguf", whole))
    text = "th    th  õ\n\n<né><x>"
    ids = found.encode(text)
    assert [found.decode([id], skip_special_tokens=False) for id in ids] == [
        "th", "    ", "th", "  ", "õ", "\n\n", "<né>", "<x>"
    ]  # fmt: skip
    assert found.decode(ids, skip_special_tokens=False) == text
    assert found.decode(found.encode("ü ñ é õ")) == "ü ñ é õ"


@pytest.mark.parametrize(
    ("pre", "whole"), [("llama-bpe", True), ("tekken", True), ("qwen2", False)]
)
def test_a_word_that_is_a_token_needs_no_merges(pre: str, whole: bool, tmp_path: Path) -> None:
    """As ` Việt` in Llama 3's vocabulary."""
    words = ["th", "Ġworth"]
    found = load_tokenizer(
        write_bytes(tmp_path / "m.gguf", {}, words, pre=pre, add_bos_token=False)
    )
    apart = [*map(LETTERS.index, "Ġwor"), FIRST]
    assert found.encode(" worth") == ([FIRST + 1] if whole else apart)


PIECES = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": ADDED, "<|endoftext|>": CONTROL,
          "<|user|>": CONTROL, "<|end|>": CONTROL, "▁": NORMAL, "a": NORMAL, "▁a": NORMAL,
          "<0x0A>": 6, "▁▁": ADDED}  # fmt: skip


def pieces(path: Path, text: str, **fields: Any) -> list[str]:
    found = load_tokenizer(write_pieces(path, PIECES, add_bos_token=False, **fields))
    ids = found.encode(text)
    return [list(PIECES)[id] for id in ids]


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("phi3", "<|user|> a <|end|> <s> ▁a <|endoftext|> <0x0A> <|end|>"),
        ("llama", "<|user|> <0x0A> ▁a <|end|> <0x0A> <s> ▁a <|endoftext|> <0x0A> <|end|> ▁"),
    ],
)
def test_marks_of_phi_3_take_the_white_space_after_them(
    architecture: str, expected: str, tmp_path: Path
) -> None:
    text = "<|user|>\n a<|end|>\n<s> a<|endoftext|>\n<|end|> "
    fields = {"architecture": architecture, "add_space_prefix": False}
    assert " ".join(pieces(tmp_path / "m.gguf", text, **fields)) == expected


def test_runs_of_spaces_are_whole_in_either_spelling(tmp_path: Path) -> None:
    found = pieces(tmp_path / "m.gguf", "a   a", add_space_prefix=False)
    assert found == ["a", "▁▁", "▁a"]
    assert pieces(tmp_path / "m.gguf", "a  a") == ["▁a", "▁▁", "▁a"], "one more after each"


def test_sentencepiece_has_ids_where_the_file_names_none(tmp_path: Path) -> None:
    found = load_tokenizer(write_pieces(tmp_path / "m.gguf", PIECES))
    assert found.encode("a") == [1, 8]
    assert found.end_ids == {2}


@pytest.mark.parametrize(
    ("whole", "fields", "message"),
    [
        ({"Ã©": ADDED, "ĠÃ©": NORMAL}, {}, r"'Ã©' as an added token \(257\), but it is decoded"),
        ({"<x>": ADDED}, {"token_type": [1, 1]}, "token_type has 2 values for 258 tokens"),
        ({"<x>": ADDED}, {"merges": ["th"]}, "merges must hold pairs of tokens, but holds 'th'"),
        ({"<x>": ADDED}, {"merges": ["t x"]}, "no tokenizer can be made: .*tx"),
        ({"<x>": ADDED}, {"pre": ["gpt-2"]}, r"pre is \['gpt-2'\]; supported"),
        (
            {"<x>": ADDED},
            {"pre": "unheard-of"},
            r"pre is 'unheard-of'; supported: \d+ names",
        ),
        ({"<x>": ADDED}, {"eos_token_id": 258}, "eos_token_id is 258, and there are 258 tokens"),
    ],
)
def test_what_cannot_be_exact_is_refused_by_name(
    whole: dict[str, int], fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_bytes(tmp_path / "m.gguf", whole, **fields)
    with pytest.raises(ModelError, match=message):
        load_tokenizer(path)


def test_so_are_pieces_of_hostile_length_and_scores_too_few(tmp_path: Path) -> None:
    long = {**PIECES, "a" * 2000: NORMAL}
    with pytest.raises(ModelError, match="one of 2,000 characters, token 11; at most 1,024"):
        load_tokenizer(write_pieces(tmp_path / "m.gguf", long))
    with pytest.raises(ModelError, match="scores has 1 values for 11 tokens"):
        load_tokenizer(write_pieces(tmp_path / "m.gguf", PIECES, scores=[1.0]))


def test_a_file_without_a_name_for_its_words_gets_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_bytes(tmp_path / "m.gguf", {}, pre=None)
    with caplog.at_level(logging.WARNING, "quire"):
        unnamed = load_tokenizer(path)
    assert "m.gguf has no tokenizer.ggml.pre, so that words are cut as llama.cpp" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "quire"):
        named = load_tokenizer(write_bytes(path, {}, pre="default"))
    assert not caplog.text
    assert unnamed.encode("th 1234 th!") == named.encode("th 1234 th!")


NASTY = (
    "", " ", "the  town\n\n\t by", "naïve ü 日本語 한국어 ไทย", "1234567 3.14 0x1F ١٢٣",
    "\r\n \r\n", "it's WE'LL don't", "👩‍👩‍👧 \u200d\ufeff", "e\u0301 é", "camelCase HTTPServer",
    "a/b//c?!...\n\n/",
)  # fmt: skip


@pytest.mark.parametrize("words", sorted(set(WORDS.values())), ids=lambda words: words.expressions)
def test_every_way_to_cut_words_keeps_the_text(words: Words, tmp_path: Path) -> None:
    name = next(name for name, known in WORDS.items() if known == words)
    found = load_tokenizer(write_bytes(tmp_path / "m.gguf", {}, pre=name))
    for text in NASTY:
        assert found.decode(found.encode(text)) == text


def ends_of(tokens: Mapping[str, int], **fields: Any) -> Sequence[str]:
    """By the metadata of a file that holds ``tokens`` and their types."""
    texts = list(tokens)
    metadata = {"tokens": texts, "token_type": array("i", list(tokens.values())), **fields}
    found = end_tokens({f"tokenizer.ggml.{name}": value for name, value in metadata.items()})
    return sorted(texts[at] for at in found)


C, U, N = CONTROL, ADDED, NORMAL


@pytest.mark.parametrize(
    ("family", "tokens", "fields", "expected"),
    [
        (
            "Gemma 3", {"<pad>": C, "<eos>": C, "<bos>": C, "</s>": U, "<end_of_turn>": C},
            {"eos_token_id": 1}, ["<end_of_turn>", "<eos>"],
        ),
        (
            "Phi-3", {"<s>": C, "</s>": U, "<|endoftext|>": C, "<|user|>": C, "<|end|>": C},
            {"eos_token_id": 2}, ["<|endoftext|>", "<|end|>"],
        ),
        (
            "Llama 3, at first", {"<|end_of_text|>": C, "<|eot_id|>": C, "<|eom_id|>": C, "a": N},
            {"eos_token_id": 0}, ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
        ),
        (
            "a ChatML tune", {"<s>": C, "</s>": C, "<|im_start|>": U, "<|im_end|>": U},
            {"eos_token_id": 1}, ["</s>", "<|im_end|>"],
        ),
        (
            "gpt-oss", {"<|return|>": C, "<|call|>": C, "<|end|>": C, "<|endoftext|>": C},
            {"eos_token_id": 0}, ["<|call|>", "<|endoftext|>", "<|return|>"],
        ),
        (
            "Solar Open", {"<|flush|>": C, "<|calls|>": C, "<|end|>": C, "a": N},
            {}, ["<|calls|>", "<|flush|>"],
        ),
        (
            "a coder", {"<|file_sep|>": U, "<|repo_name|>": U, "<|fim_pad|>": U, "<|a|>": C},
            {}, ["<|file_sep|>", "<|fim_pad|>", "<|repo_name|>"],
        ),
        (
            "any that names them", {"a": N, "b": N, "c": N, "d": N, "e": N},
            {"eos_token_ids": array("i", [0, 1]), "eot_token_id": 2, "eom_token_id": 3},
            ["a", "b", "c", "d"],
        ),
    ],
)  # fmt: skip
def test_texts_end_at_the_end_of_a_turn(
    family: str, tokens: dict[str, int], fields: dict[str, Any], expected: list[str]
) -> None:
    assert ends_of(tokens, **fields) == expected, family


@pytest.mark.parametrize(
    "metadata", [{}, {"tokens": 7}, {"tokens": ["</s>"], "token_type": "x"}, {"tokens": "</s>"}]
)
def test_damaged_vocabularies_have_the_ends_that_they_name(metadata: dict[str, Any]) -> None:
    told = {f"tokenizer.ggml.{name}": value for name, value in metadata.items()}
    assert end_tokens({**told, "tokenizer.ggml.eos_token_id": 3})[0] == 3


def test_ends_are_special_whatever_the_file_calls_them(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "m.gguf", {"<|im_end|>": ADDED, "<|end|>": NORMAL, "<u>": ADDED})
    found = load_tokenizer(path)
    ids = found.encode("th<|im_end|><|end|><u>")
    assert ids == [FIRST, FIRST + 1, FIRST + 2, FIRST + 3]
    assert found.decode(ids) == "th<u>"
    assert set(end_tokens(open_gguf(path).metadata)) == {FIRST + 1, FIRST + 2}


def test_a_text_ends_at_the_end_of_a_turn(model_dir: Any, tmp_path: Path) -> None:
    """The file's metadata has another end, which no text of it comes to."""
    directory, path = model_dir("llama"), tmp_path / "model.gguf"
    whole = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    (long,) = LLM(directory, dtype="float32").generate([[3, 4, 5]], whole, use_tqdm=False)
    ids = long.outputs[0].token_ids
    end = next(id for at, id in enumerate(ids) if at > 3 and id not in ids[:at])

    def vocabulary(writer: Any) -> None:
        tokens = [*LETTERS, "th", *(f"<{at}>" for at in range(FIRST + 1, VOCAB_SIZE))]
        assert tokens[end] not in ("t", "h", "th")
        tokens[end] = "<end_of_turn>"
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([NORMAL] * len(tokens))
        writer.add_token_merges(["t h"])

    write_gguf(directory, path, lambda _: Kind.F32, vocabulary)
    llm = LLM(path, dtype="float32")
    params = SamplingParams(temperature=0.0, max_tokens=12)
    (short,) = llm.generate([[3, 4, 5]], params, use_tqdm=False)
    assert short.outputs[0].token_ids == ids[: ids.index(end) + 1]
    assert short.outputs[0].finish_reason == "stop"
